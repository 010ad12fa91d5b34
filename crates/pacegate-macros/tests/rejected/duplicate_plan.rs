use pacegate::{RateLimited, rate_limit};

#[rate_limit(key = "user", plan = "gold", plan = "gold")]
fn order() -> Result<(), RateLimited> {
    Ok(())
}

fn main() {}
