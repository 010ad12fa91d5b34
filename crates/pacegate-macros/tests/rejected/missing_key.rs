use pacegate::{RateLimited, rate_limit};

#[rate_limit(plan = "gold")]
fn order() -> Result<(), RateLimited> {
    Ok(())
}

fn main() {}
