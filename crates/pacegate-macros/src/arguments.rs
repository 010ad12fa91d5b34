//! The arguments of the attribute.

use proc_macro2::Span;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, Ident, Lit, LitStr, Result, Token};

/// The parsed arguments.
pub(crate) struct Arguments {
    pub(crate) key: Expr,
    pub(crate) plans: Vec<LitStr>,
    pub(crate) cost: Option<Expr>,
    pub(crate) limiter: Option<Expr>,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let (mut key, mut cost, mut limiter, mut plans) = (None, None, None, Vec::new());
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            let value: Expr = input.parse()?;
            let known = match name.to_string().as_str() {
                "key" => &mut key,
                "cost" => &mut cost,
                "limiter" => &mut limiter,
                "plan" => {
                    add_plans(&value, &mut plans)?;
                    comma(input)?;
                    continue;
                }
                other => {
                    let message =
                        format!("unknown argument `{other}`; expected one of key, plan, cost, limiter");
                    return Err(syn::Error::new(name.span(), message));
                }
            };
            if known.replace(value).is_some() {
                return Err(syn::Error::new(name.span(), format!("duplicate argument `{name}`")));
            }
            comma(input)?;
        }
        let missing = |message| syn::Error::new(Span::call_site(), message);
        let key = key.ok_or_else(|| {
            missing("required argument `key` is missing; it is the identity to charge, such as key = \"user:{user_id}\"")
        })?;
        if plans.is_empty() {
            return Err(missing(
                "required argument `plan` is missing; it selects the limits, such as plan = \"gold\"",
            ));
        }
        Ok(Self { key, plans, cost, limiter })
    }
}

fn comma(input: ParseStream<'_>) -> Result<()> {
    if input.is_empty() { Ok(()) } else { input.parse::<Token![,]>().map(drop) }
}

fn add_plans(value: &Expr, plans: &mut Vec<LitStr>) -> Result<()> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) => {
            if name.value().is_empty() {
                return Err(syn::Error::new(name.span(), "the name of a plan must not be empty"));
            }
            if plans.iter().any(|other| other.value() == name.value()) {
                let message = format!("duplicate plan `{}`", name.value());
                return Err(syn::Error::new(name.span(), message));
            }
            plans.push(name.clone());
            Ok(())
        }
        Expr::Array(list) => list.elems.iter().try_for_each(|item| add_plans(item, plans)),
        other => Err(syn::Error::new(
            other.span(),
            "expected the name of a plan as a string literal, or a list of names such as plan = [\"gold\", \"daily\"]",
        )),
    }
}
