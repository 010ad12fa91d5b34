use pacegate::{RateLimited, rate_limit};

#[rate_limit(key = "user", plan = "gold")]
fn order() -> Result<(), std::fmt::Error> {
    Ok(())
}

fn unused() -> Option<RateLimited> {
    None
}

fn main() {}
