use pacegate::{RateLimited, rate_limit};

#[rate_limit(key = "user", plan = "gold")]
fn order() {}

fn unused() -> Option<RateLimited> {
    None
}

fn main() {}
