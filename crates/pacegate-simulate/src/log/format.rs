//! The format of a log, and its detection.

use pacegate_core::named;

use super::csv;

/// The format of the lines of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The common log format of web servers.
    Common,
    /// The same with referer, agent and any additional fields.
    Combined,
    /// One JSON object per line.
    Json,
    /// Values separated by commas, semicolons or tabs, with a header line.
    Csv,
}

named!(Format { Common => "common", Combined => "combined", Json => "json", Csv => "csv" });

impl Format {
    /// Returns an example of a line.
    pub(super) fn example(self) -> &'static str {
        match self {
            Self::Common => r#"192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326"#,
            Self::Combined => {
                r#"192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326 "-" "curl/8""#
            }
            Self::Json => {
                r#"{"time":"2000-10-10T20:55:36Z","ip":"192.0.2.1","method":"GET","path":"/a","status":200}"#
            }
            Self::Csv => "time,ip,user,method,path,status",
        }
    }

    /// Detects the format of most of the lines, because the first one can be broken.
    pub(super) fn detect(lines: &[&str]) -> Option<Self> {
        let most =
            |is: fn(&str) -> bool| lines.iter().filter(|line| is(line.trim())).count() * 2 > lines.len();
        if most(|line| line.starts_with('{')) {
            return Some(Self::Json);
        }
        let access = |line: &str| line.split_once('[').is_some_and(|(_, rest)| rest.contains("] \""));
        if most(access) {
            let quotes = |line: &str| line.bytes().filter(|byte| *byte == b'"').count() >= 6;
            return Some(if most(quotes) { Self::Combined } else { Self::Common });
        }
        let (_, names) = csv::names(lines.first()?);
        (names.len() > 1).then_some(Self::Csv)
    }
}
