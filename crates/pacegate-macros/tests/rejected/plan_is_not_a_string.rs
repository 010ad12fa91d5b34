use pacegate::{RateLimited, rate_limit};

#[rate_limit(key = "user", plan = 3)]
fn order() -> Result<(), RateLimited> {
    Ok(())
}

fn main() {}
