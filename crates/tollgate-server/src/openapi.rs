//! The OpenAPI document, made from the routes and their bodies, and the page that shows it.

pub(crate) mod vocabulary;
