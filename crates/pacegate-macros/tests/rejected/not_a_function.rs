use pacegate::{RateLimited, rate_limit};

use rate_limit as limited;

#[limited(key = "user", plan = "gold")]
struct Order(Result<(), RateLimited>);

fn main() {}
