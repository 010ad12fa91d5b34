use pacegate::{RateLimited, rate_limit};

#[rate_limit(key = "user", plan = "gold", tokens = 1)]
fn order() -> Result<(), RateLimited> {
    Ok(())
}

fn main() {}
