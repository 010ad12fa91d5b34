//! The mapping of fields of the log to parts of a request.

use pacegate::identity;

use crate::error::SimulateError;
use crate::words::first_lines;

/// Maximum number of dimensions.
const DIMENSIONS_MAX: usize = 16;
/// Parts of a request that are not dimensions.
const PARTS: [&str; 7] = ["time", "endpoint", "method", "request", "status", "cost", "tier"];

/// Prefix of parts that are costs in other units than requests.
const COST_OF: &str = "cost.";

/// Usual names of fields, which need no `--map`. The first one that the log has is used.
const USUAL: [(&str, &[&str]); 9] = [
    (
        "time",
        &[
            "time",
            "timestamp",
            "@timestamp",
            "ts",
            "time_iso8601",
            "datetime",
            "date",
            "msec",
            "start_time",
            "StartUTC",
        ],
    ),
    ("endpoint", &["endpoint", "path", "uri", "request_uri", "url", "request.uri", "RequestPath"]),
    ("method", &["method", "request_method", "http_method", "verb", "request.method", "RequestMethod"]),
    ("request", &["request", "request_line"]),
    ("status", &["status", "status_code", "response_code", "code", "DownstreamStatus"]),
    (
        "ip",
        &[
            "ip",
            "client_ip",
            "clientip",
            "remote_addr",
            "remote_ip",
            "remote_address",
            "address",
            "request.client_ip",
            "request.remote_ip",
            "downstream_remote_address",
            "ClientHost",
        ],
    ),
    ("user", &["user", "user_id", "userid", "username", "remote_user", "ClientUsername"]),
    ("apikey", &["apikey", "api_key", "x_api_key"]),
    ("tier", &["tier"]),
];

/// The value of `--map`: parts of a request, and their fields.
///
/// ```
/// use pacegate_simulate::FieldMap;
///
/// let map: FieldMap = "user=account.id,tenant=org".parse()?;
/// assert!("user".parse::<FieldMap>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldMap(Vec<(String, String)>);

impl std::str::FromStr for FieldMap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in text.split(',') {
            let (part, field) = pair
                .split_once('=')
                .ok_or_else(|| format!("expected PART=FIELD, such as user=account.id, got `{pair}`"))?;
            let (part, field) = (part.trim(), field.trim());
            if part.is_empty() {
                return Err(format!("expected a part of a request before `=`, got `{pair}`"));
            }
            let part = identity::dimension(part).map_err(|invalid| {
                let reason = invalid.reason();
                format!("`{part}` is neither a part of a request nor a dimension; a dimension {reason}")
            })?;
            if pairs.iter().any(|(other, _)| other == part) {
                return Err(format!("duplicate part `{part}`"));
            }
            pairs.push((part.to_owned(), field.to_owned()));
        }
        Ok(Self(pairs))
    }
}

impl FieldMap {
    /// Adds the parts of another `--map`.
    ///
    /// # Errors
    /// A message about a duplicate part.
    pub fn merge(&mut self, other: Self) -> Result<(), String> {
        for (part, field) in other.0 {
            if self.0.iter().any(|(known, _)| *known == part) {
                return Err(format!("duplicate part `{part}`"));
            }
            self.0.push((part, field));
        }
        Ok(())
    }

    fn field(&self, part: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == part).map(|(_, field)| field.as_str())
    }
}

/// The fields that a log has.
#[derive(Clone, Debug)]
pub(crate) struct Available {
    pub(crate) names: Vec<String>,
    /// Number of lines that were examined, if other lines can have more fields.
    pub(crate) in_lines: Option<usize>,
    /// Whether errors do not quote the log: if the header of a CSV file is missing, the names are
    /// values of its first line.
    pub(crate) hidden: bool,
}

impl Available {
    /// Returns the list of fields for an error message.
    fn list(&self) -> String {
        let names = if self.hidden { format!("{} fields", self.names.len()) } else { self.names.join(", ") };
        match self.in_lines {
            None => format!("the log has {names}"),
            Some(lines) => {
                format!("the {} {} {names}", first_lines(lines), if lines == 1 { "has" } else { "have" })
            }
        }
    }
}

/// The fields of the parts of a request. A slot is the index of a field that is parsed from a line.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    /// The field of each slot.
    pub(crate) fields: Vec<String>,
    pub(crate) time: usize,
    pub(crate) endpoint: Option<usize>,
    pub(crate) method: Option<usize>,
    /// Method and endpoint in one field, such as `GET /a HTTP/1.1`.
    pub(crate) request: Option<usize>,
    pub(crate) status: Option<usize>,
    pub(crate) cost: Option<usize>,
    /// Costs in other units, by unit.
    pub(crate) costs: Vec<(String, usize)>,
    pub(crate) tier: Option<usize>,
    pub(crate) dimensions: Vec<(String, usize)>,
    /// Whether errors do not quote the log.
    pub(crate) hidden: bool,
}

impl Mapping {
    /// Uses `map`, and finds other parts by their usual names. The dimensions of the rules are also
    /// found by their own names.
    pub(crate) fn find(
        map: &FieldMap,
        available: &Available,
        rule_dimensions: &[String],
    ) -> Result<Self, SimulateError> {
        let mut fields: Vec<String> = Vec::new();
        let mut slot_of = |field: String| {
            fields.iter().position(|known| *known == field).unwrap_or_else(|| {
                fields.push(field);
                fields.len() - 1
            })
        };
        let mut slot = |part: &str| -> Result<Option<usize>, SimulateError> {
            Ok(find_field(part, map, available)?.map(&mut slot_of))
        };
        let time = slot("time")?.ok_or_else(|| missing("time", available))?;
        let (endpoint, method, status) = (slot("endpoint")?, slot("method")?, slot("status")?);
        let (cost, tier) = (slot("cost")?, slot("tier")?);
        let mut costs = Vec::new();
        for (part, _) in &map.0 {
            let Some(unit) = part.strip_prefix(COST_OF) else { continue };
            identity::check_unit(unit)
                .map_err(|invalid| SimulateError::misused(format!("--map {part}: {invalid}")))?;
            costs.extend(slot(part)?.map(|slot| (unit.to_owned(), slot)));
        }
        let request = match (endpoint, method) {
            (Some(_), Some(_)) => None,
            _ => slot("request")?,
        };
        let mut names: Vec<&str> = vec!["user", "ip", "apikey"];
        names.extend(rule_dimensions.iter().map(String::as_str));
        let is_dimension = |part: &&str| !PARTS.contains(part) && !part.starts_with(COST_OF);
        names.extend(map.0.iter().map(|(part, _)| part.as_str()).filter(is_dimension));
        let mut dimensions: Vec<(String, usize)> = Vec::new();
        for name in names {
            if dimensions.iter().any(|(known, _)| known == name) {
                continue;
            }
            if let Some(slot) = slot(name)? {
                dimensions.push((name.to_owned(), slot));
            }
        }
        if dimensions.is_empty() {
            return Err(missing("ip or user", available));
        }
        if dimensions.len() > DIMENSIONS_MAX {
            return Err(SimulateError::misused(format!("--map: more than {DIMENSIONS_MAX} dimensions")));
        }
        Ok(Self {
            fields,
            time,
            endpoint,
            method,
            request,
            status,
            cost,
            costs,
            tier,
            dimensions,
            hidden: available.hidden,
        })
    }

    /// Returns every part and its field, for the report.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        let parts = [
            ("time", Some(self.time)),
            ("endpoint", self.endpoint),
            ("method", self.method),
            ("request", self.request),
            ("status", self.status),
            ("cost", self.cost),
            ("tier", self.tier),
        ];
        let parts = parts.into_iter().filter_map(|(part, slot)| Some((part.to_owned(), slot?)));
        let costs = self.costs.iter().map(|(unit, slot)| (format!("{COST_OF}{unit}"), *slot));
        let all = parts.chain(costs).chain(self.dimensions.iter().cloned());
        all.map(|(part, slot)| (part, self.fields[slot].clone())).collect()
    }
}

/// Returns the field of a part, or `None` if the log has none. An empty field in the map disables
/// the part.
fn find_field(part: &str, map: &FieldMap, available: &Available) -> Result<Option<String>, SimulateError> {
    let has = |name: &&str| available.names.iter().any(|known| known == name);
    match map.field(part) {
        Some("") => Ok(None),
        Some(field) if available.in_lines.is_some() || has(&field) => Ok(Some(field.to_owned())),
        Some(field) => Err(SimulateError::misused(format!(
            "--map {part}={field}: the log has no field `{field}`; {}",
            available.list()
        ))),
        None => {
            let usual =
                USUAL.iter().find(|(name, _)| *name == part).map_or(&[] as &[&str], |(_, fields)| fields);
            let own = std::iter::once(part);
            Ok(usual.iter().copied().chain(own).find(has).map(str::to_owned))
        }
    }
}

fn missing(part: &str, available: &Available) -> SimulateError {
    let first = part.split(' ').next().unwrap_or(part);
    SimulateError::misused(format!(
        "no field of the log is known to be the {part}; set it with --map {first}=FIELD; {}",
        available.list()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn available(names: &[&str], open: bool) -> Available {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Available { names, in_lines: open.then_some(100), hidden: false }
    }

    fn found(map: &str, available: &Available) -> Result<String, String> {
        let map = if map.is_empty() { FieldMap::default() } else { map.parse()? };
        let mapping =
            Mapping::find(&map, available, &["tenant".to_owned()]).map_err(|error| error.to_string())?;
        let pairs = mapping.pairs().into_iter().map(|(part, field)| format!("{part}={field}"));
        Ok(pairs.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn usual_names_are_found_and_others_are_mapped() {
        let caddy = available(&["ts", "status", "request.remote_ip", "request.method", "request.uri"], true);
        let expected =
            "time=ts endpoint=request.uri method=request.method status=status ip=request.remote_ip";
        assert_eq!(found("", &caddy).as_deref(), Ok(expected));
        let own = available(&["when", "who", "path", "tenant"], false);
        assert_eq!(
            found("time=when,user=who", &own).as_deref(),
            Ok("time=when endpoint=path user=who tenant=tenant")
        );
        assert_eq!(
            found("time=when,user=who,tenant=", &own).as_deref(),
            Ok("time=when endpoint=path user=who")
        );
    }

    #[test]
    fn mapping_errors_list_the_fields() {
        let own = available(&["when", "who"], false);
        assert_eq!(
            found("time=at", &own).unwrap_err(),
            "--map time=at: the log has no field `at`; the log has when, who"
        );
        assert_eq!(
            found("", &own).unwrap_err(),
            "no field of the log is known to be the time; set it with --map time=FIELD; the log has when, who"
        );
        assert!(found("time=when", &own).unwrap_err().contains("known to be the ip or user"));
        for (map, reason) in [
            ("user", "PART=FIELD"),
            ("=x", "expected a part of a request"),
            ("a=b,a=c", "duplicate part `a`"),
            ("a b=c", "`a b` is neither a part of a request nor a dimension"),
            ("tenänt=c", "1 to 64 lower-case letters"),
            ("Tenant=c", "must be in lower case: `tenant`"),
        ] {
            assert!(found(map, &own).unwrap_err().contains(reason), "{map}");
        }
    }
}
