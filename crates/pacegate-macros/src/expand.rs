//! Expands the attribute: inserts the check before the body of the function.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, ItemFn, Lit, Result, ReturnType};

use crate::arguments::Arguments;

pub(crate) fn expand(arguments: &Arguments, function: &ItemFn) -> Result<TokenStream> {
    let ItemFn { attrs, vis, sig, block, .. } = function;
    let ReturnType::Type(_, output) = &sig.output else {
        let message = "a function with #[rate_limit] must return a Result whose error type implements From<pacegate::RateLimited>; denied calls return that error";
        return Err(syn::Error::new(sig.ident.span(), message));
    };
    if let Some(constness) = &sig.constness {
        return Err(syn::Error::new(constness.span(), "#[rate_limit] cannot be applied to a const function"));
    }
    let Arguments { key, plans, cost, limiter } = arguments;
    let key = match key {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => quote!(::std::format!(#text)),
        other => quote_spanned!(generated(other.span())=> ::std::string::ToString::to_string(&(#other))),
    };
    let cost = match cost {
        Some(cost) => quote_spanned!(generated(cost.span())=> ::pacegate::attribute::cost(#cost)),
        None => quote!(1),
    };
    let limiter = match limiter {
        Some(limiter) => {
            quote_spanned!(generated(limiter.span())=> ::core::option::Option::Some(&(#limiter)))
        }
        None => quote!(::core::option::Option::None),
    };
    let admit = if sig.asyncness.is_some() {
        quote!(::pacegate::attribute::admit(#limiter, &__pacegate_key, &[#(#plans),*], #cost).await)
    } else {
        quote!(::pacegate::attribute::admit_now(#limiter, &__pacegate_key, &[#(#plans),*], #cost))
    };
    // If the error type does not implement `From<RateLimited>`, the compiler points at the return
    // type.
    let deny = quote_spanned! {output.span()=>
        return ::core::result::Result::Err(::core::convert::From::from(__pacegate_limited));
    };
    // The statements, not the block: braces around a single expression would be a warning.
    let body = &block.stmts;
    Ok(quote! {
        #(#attrs)* #vis #sig {
            // The error may be RateLimited itself.
            #[allow(clippy::useless_conversion)]
            {
                let __pacegate_key = #key;
                if let ::core::result::Result::Err(__pacegate_limited) = #admit {
                    #deny
                }
            }
            #(#body)*
        }
    })
}

/// Returns a span at the same location that lints recognise as generated code.
fn generated(span: Span) -> Span {
    Span::call_site().located_at(span)
}
