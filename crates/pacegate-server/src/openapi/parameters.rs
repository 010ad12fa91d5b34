//! Parameters that many operations have. Only their descriptions are used: handlers read queries themselves.

use utoipa::IntoParams;

/// Which part of a list is wanted.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it stands for what handlers read from the query")]
pub(crate) struct PageParameters {
    /// How many entries at most; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u16>,
    /// Where to go on: what the page before said.
    cursor: Option<String>,
}
