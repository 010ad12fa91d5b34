//! The generated code causes no warnings: this file compiles with all warnings denied.

#![deny(warnings, clippy::all, clippy::needless_return, clippy::unused_async, clippy::unnecessary_cast)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Display;
use std::num::ParseIntError;

use pacegate::{Limit, Limiter, RateLimited, rate_limit};

#[derive(Debug)]
enum Failed {
    Limited,
    Number,
}

impl From<RateLimited> for Failed {
    fn from(_: RateLimited) -> Self {
        Self::Limited
    }
}

impl From<ParseIntError> for Failed {
    fn from(_: ParseIntError) -> Self {
        Self::Number
    }
}

#[rate_limit(key = "all", plan = "p", limiter = limiter)]
#[rustfmt::skip]
fn one_line(limiter: &Limiter) -> Result<u32, RateLimited> { Ok(1) }

#[rate_limit(key = user, plan = "p", limiter = limiter)]
#[rustfmt::skip]
async fn one_line_async(limiter: &Limiter, user: &str) -> Result<usize, Failed> { Ok(user.len()) }

#[rate_limit(key = "user:{user}", plan = "p", cost = cost, limiter = *limiter)]
fn cost_of_type_u64(limiter: &Limiter, user: &str, cost: u64) -> Result<String, Failed> {
    Ok(format!("{user} {cost}"))
}

#[rate_limit(key = "items", plan = ["p", "q"], cost = items.len(), limiter = limiter)]
fn opaque<'a>(limiter: &Limiter, items: &'a [u32]) -> Result<impl Iterator<Item = &'a u32>, Failed> {
    Ok(items.iter())
}

#[rate_limit(key = shown, plan = "p", limiter = limiter)]
async fn question_mark(limiter: &Limiter, shown: impl Display, text: &str) -> Result<u32, Failed> {
    let number: u32 = text.parse()?;
    if number > 1 {
        return Err(Failed::Number);
    }
    Ok(number)
}

struct Shop {
    limiter: Limiter,
}

impl Shop {
    #[rate_limit(key = "shop", plan = "p", limiter = self.limiter)]
    fn method(&mut self, name: &str) -> Result<usize, RateLimited> {
        match name {
            "" => Ok(0),
            name => Ok(name.len()),
        }
    }
}

#[tokio::test]
async fn functions_without_warnings_are_limited() {
    let limit = Limit::per_hour(2);
    let limiter = Limiter::builder().plan("p", [limit]).plan("q", [limit]).build().unwrap();
    assert_eq!(one_line(&limiter).unwrap(), 1);
    assert_eq!(one_line_async(&limiter, "u").await.unwrap(), 1);
    assert_eq!(cost_of_type_u64(&limiter, "u", 2).unwrap(), "u 2");
    assert!(matches!(cost_of_type_u64(&limiter, "u", 1), Err(Failed::Limited)));
    assert_eq!(opaque(&limiter, &[7, 8]).unwrap().count(), 2);
    assert!(matches!(question_mark(&limiter, 1, "x").await, Err(Failed::Number)));
    assert_eq!(question_mark(&limiter, 2, "1").await.unwrap(), 1);
    assert_eq!(Shop { limiter }.method("tea").unwrap(), 3);
}
