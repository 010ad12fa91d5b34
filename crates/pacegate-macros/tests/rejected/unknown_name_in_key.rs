use pacegate::{RateLimited, rate_limit};

#[rate_limit(key = "user:{usr}", plan = "gold")]
fn order(user: u64) -> Result<u64, RateLimited> {
    Ok(user)
}

fn main() {}
