//! What stands in the parentheses of the attribute.

use proc_macro2::Span;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, Ident, Lit, LitStr, Result, Token};

const KNOWN: &str = "known are key, plan, cost and limiter";

/// The arguments of the attribute.
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
                    return Err(syn::Error::new(name.span(), format!("unknown argument `{other}`; {KNOWN}")));
                }
            };
            if known.replace(value).is_some() {
                return Err(syn::Error::new(name.span(), format!("`{name}` is there twice")));
            }
            comma(input)?;
        }
        let missing = |what: &str| syn::Error::new(Span::call_site(), format!("{what}; {KNOWN}"));
        let key =
            key.ok_or_else(|| missing("`key` is missing: say whom to count, like key = \"user:{user_id}\""))?;
        if plans.is_empty() {
            return Err(missing("`plan` is missing: say which limits apply, like plan = \"gold\""));
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
                return Err(syn::Error::new(name.span(), "a plan's name cannot be empty"));
            }
            if plans.iter().any(|other| other.value() == name.value()) {
                return Err(syn::Error::new(
                    name.span(),
                    "this plan is there twice, and would be charged twice",
                ));
            }
            plans.push(name.clone());
            Ok(())
        }
        Expr::Array(list) => list.elems.iter().try_for_each(|item| add_plans(item, plans)),
        other => Err(syn::Error::new(
            other.span(),
            "a plan is a name in quotes, or a list of them: plan = [\"gold\", \"daily\"]",
        )),
    }
}
