use pacegate::{RateLimited, rate_limit};

#[rate_limit(key = "user")]
fn order() -> Result<(), RateLimited> {
    Ok(())
}

fn main() {}
