//! The attribute `#[rate_limit]`. Use it through the `pacegate` crate, whose names the generated code refers to.

mod arguments;
mod expand;

use proc_macro::TokenStream;
use syn::ItemFn;

use crate::arguments::Arguments;

/// Has a function checked before it runs, asynchronous or not.
///
/// | argument | meaning |
/// | --- | --- |
/// | `key` | whom to count: a text with arguments in braces (`"user:{user_id}"`), or an expression over them. Required |
/// | `plan` | the plan that applies. Several of them, or a list, chain: all are charged or none is. Required |
/// | `cost` | how much a call takes, an expression over the arguments; 1 unless said |
/// | `limiter` | the limiter, like `self.limiter`; the installed one (`Limiter::install`) unless said |
///
/// The function returns a `Result` whose error can be made `From<pacegate::RateLimited>`: that is what a denied call returns. A function that is not asynchronous
/// needs a limiter that counts in memory.
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
        let error =
            syn::Error::new_spanned(&item, "#[rate_limit] goes on a function or a method with a body");
        let error = error.to_compile_error();
        return quote::quote!(#error #item).into();
    };
    match syn::parse::<Arguments>(arguments).and_then(|arguments| expand::expand(&arguments, &function)) {
        Ok(tokens) => tokens.into(),
        Err(error) => {
            // The function stays, so that its callers do not fail as well.
            let error = error.to_compile_error();
            quote::quote!(#error #function).into()
        }
    }
}
