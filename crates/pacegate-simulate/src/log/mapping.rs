//! Which field of the log is which part of a request.

use pacegate::identity;

use crate::error::SimulateError;
use crate::words::first_lines;

/// More dimensions than anybody counts by at once.
const DIMENSIONS_MAX: usize = 16;
/// Parts of a request that are no dimension.
const PARTS: [&str; 7] = ["time", "endpoint", "method", "request", "status", "cost", "tier"];

/// What the parts for costs in other units than requests start with.
const COST_OF: &str = "cost.";

/// What is known by these names is found without being told. The first that the log has is taken.
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

/// What was asked for by `--map`: parts of a request, and the fields they are in.
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
                .ok_or_else(|| format!("`{pair}` is not of the form PART=FIELD, like user=account.id"))?;
            let (part, field) = (part.trim(), field.trim());
            if part.is_empty() {
                return Err(format!("`{pair}` does not say which part of a request `{field}` is"));
            }
            let part = identity::dimension(part).map_err(|invalid| {
                let reason = invalid.reason();
                format!("`{part}` is neither a part of a request nor a dimension, which {reason}")
            })?;
            if pairs.iter().any(|(other, _)| other == part) {
                return Err(format!("`{part}` is there twice"));
            }
            pairs.push((part.to_owned(), field.to_owned()));
        }
        Ok(Self(pairs))
    }
}

impl FieldMap {
    /// Adds what another option says; the same part twice is a mistake.
    ///
    /// # Errors
    /// Which part it is.
    pub fn merge(&mut self, other: Self) -> Result<(), String> {
        for (part, field) in other.0 {
            if self.0.iter().any(|(known, _)| *known == part) {
                return Err(format!("`{part}` is there twice"));
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
    /// How many lines were looked at, where others may have further fields.
    pub(crate) in_lines: Option<usize>,
    /// Whether nothing of the log may be shown: without its header, the first line of a log gives the names.
    pub(crate) hidden: bool,
}

impl Available {
    /// What fields there are, for whoever has to choose one.
    fn list(&self) -> String {
        let names = if self.hidden { format!("{} fields", self.names.len()) } else { self.names.join(", ") };
        match self.in_lines {
            None => format!("it has {names}"),
            Some(lines) => format!("in its {} there are {names}", first_lines(lines)),
        }
    }
}

/// Where each part of a request is. A slot is a place among the fields that are read from every line.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    /// The field of each slot.
    pub(crate) fields: Vec<String>,
    pub(crate) time: usize,
    pub(crate) endpoint: Option<usize>,
    pub(crate) method: Option<usize>,
    /// Method and endpoint in one, like `GET /a HTTP/1.1`.
    pub(crate) request: Option<usize>,
    pub(crate) status: Option<usize>,
    pub(crate) cost: Option<usize>,
    /// Costs in other units, by unit.
    pub(crate) costs: Vec<(String, usize)>,
    pub(crate) tier: Option<usize>,
    pub(crate) dimensions: Vec<(String, usize)>,
    /// Whether what lines say may not be shown.
    pub(crate) hidden: bool,
}

impl Mapping {
    /// Follows `map`, and finds the rest by its usual name; the dimensions of the rules by their own names as well.
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

    /// Every part and its field, to be told.
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

/// The field of a part; `None` when the log has none. An empty field in the map takes the part away.
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
        "no field of the log is known to be the {part}; say which one is with --map {first}=FIELD; {}",
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
    fn usual_names_are_found_and_others_are_told() {
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
    fn what_does_not_fit_names_the_fields_there_are() {
        let own = available(&["when", "who"], false);
        assert_eq!(
            found("time=at", &own).unwrap_err(),
            "--map time=at: the log has no field `at`; it has when, who"
        );
        assert_eq!(
            found("", &own).unwrap_err(),
            "no field of the log is known to be the time; say which one is with --map time=FIELD; it has when, who"
        );
        assert!(found("time=when", &own).unwrap_err().contains("known to be the ip or user"));
        for (map, reason) in [
            ("user", "PART=FIELD"),
            ("=x", "which part"),
            ("a=b,a=c", "`a` is there twice"),
            ("a b=c", "`a b` is neither a part of a request nor a dimension"),
            ("tenänt=c", "1 to 64 lower-case letters"),
            ("Tenant=c", "must be in lower case: `tenant`"),
        ] {
            assert!(found(map, &own).unwrap_err().contains(reason), "{map}");
        }
    }
}
