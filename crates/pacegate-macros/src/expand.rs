//! The function with its check in front.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, ItemFn, Lit, Result, ReturnType};

use crate::arguments::Arguments;

pub(crate) fn expand(arguments: &Arguments, function: &ItemFn) -> Result<TokenStream> {
    let ItemFn { attrs, vis, sig, block, .. } = function;
    let ReturnType::Type(_, output) = &sig.output else {
        let message = "a function with a rate limit returns a Result whose error implements From<pacegate::RateLimited>: that is what a denied call returns";
        return Err(syn::Error::new(sig.ident.span(), message));
    };
    if let Some(constness) = &sig.constness {
        return Err(syn::Error::new(
            constness.span(),
            "a const function cannot have a rate limit: there is nobody to ask",
        ));
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
    // Where the error's type does not fit, the compiler points at the return type.
    let refuse = quote_spanned! {output.span()=>
        return ::core::result::Result::Err(::core::convert::From::from(__pacegate_limited));
    };
    // Not the block itself, whose braces are a warning around a single expression.
    let body = &block.stmts;
    Ok(quote! {
        #(#attrs)* #vis #sig {
            // The error may be RateLimited itself.
            #[allow(clippy::useless_conversion)]
            {
                let __pacegate_key = #key;
                if let ::core::result::Result::Err(__pacegate_limited) = #admit {
                    #refuse
                }
            }
            #(#body)*
        }
    })
}

/// A place in the program for errors, of code that lints know to be generated.
fn generated(span: Span) -> Span {
    Span::call_site().located_at(span)
}
