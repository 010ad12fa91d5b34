//! The attribute macro `#[rate_limit]` of the `pacegate` crate.
//!
//! Use it as `pacegate::rate_limit` (the feature `macros` of `pacegate`): the generated code refers
//! to names of that crate. See [`macro@rate_limit`] for the arguments and an example.
//!
//! # Invariants
//!
//! - The macro generates one call of `pacegate::attribute` before the body of the function, and
//!   nothing else.
//! - Invalid arguments are compile errors that name the argument. The function itself is kept, so
//!   its callers do not produce follow-up errors.
//! - The generated code must never cause a compiler or Clippy warning in the program that uses it.

mod arguments;
mod expand;

use proc_macro::TokenStream;
use syn::ItemFn;

use crate::arguments::Arguments;

/// Checks a rate limit before the function runs.
///
/// Works on functions and methods, `async` or not. A denied call returns an error, and the body
/// does not run.
///
/// | argument | meaning |
/// | --- | --- |
/// | `key` | Required. The identity that is charged: a format string over the arguments (`"user:{user_id}"`), or an expression |
/// | `plan` | Required. The plan that applies. Repeat it or pass a list to apply several plans: all are charged, or none is |
/// | `cost` | The cost of a call, an expression over the arguments. Default: 1 |
/// | `limiter` | The limiter, such as `self.limiter`. Default: the one set by `Limiter::install` |
///
/// The function must return a `Result` whose error type implements `From<pacegate::RateLimited>`:
/// denied calls return that error. A function that is not `async` requires a limiter whose counters
/// are in memory.
///
/// ```
/// use pacegate::{Limit, Limiter, RateLimited, rate_limit};
///
/// #[rate_limit(key = "user:{user_id}", plan = "gold", limiter = limiter)]
/// fn order(limiter: &Limiter, user_id: u64, item: &str) -> Result<String, RateLimited> {
///     Ok(format!("{item} for {user_id}"))
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::builder().plan("gold", [Limit::per_minute(1)]).build()?;
/// assert_eq!(order(&limiter, 7, "tea")?, "tea for 7");
/// let denied = order(&limiter, 7, "tea").unwrap_err();
/// assert!(denied.retry_after().is_some());
/// # Ok(())
/// # }
/// ```
#[proc_macro_attribute]
pub fn rate_limit(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let Ok(function) = syn::parse::<ItemFn>(item.clone()) else {
        let item = proc_macro2::TokenStream::from(item);
        let error = syn::Error::new_spanned(
            &item,
            "#[rate_limit] can only be applied to a function or method with a body",
        );
        let error = error.to_compile_error();
        return quote::quote!(#error #item).into();
    };
    match syn::parse::<Arguments>(arguments).and_then(|arguments| expand::expand(&arguments, &function)) {
        Ok(tokens) => tokens.into(),
        Err(error) => {
            // Keep the function, so that its callers still compile.
            let error = error.to_compile_error();
            quote::quote!(#error #function).into()
        }
    }
}
