//! The users of a CSV file, and the lines that its errors are on.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::csv::{self, Record};

/// The columns that a file can have.
const COLUMNS: [&str; 6] = ["user_id", "tier", "rule", "limit", "window_seconds", "burst_capacity"];

/// An error in one line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LineError {
    pub(super) line: usize,
    pub(super) reason: String,
}

/// The users of a file, without those that have an invalid line.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) users: Vec<User>,
    pub(super) errors: Vec<LineError>,
}

/// All lines about one user.
#[derive(Debug)]
pub(super) struct User {
    user_id: String,
    /// The first line.
    line: usize,
    /// The tier, and the line that sets it.
    tier: Option<(String, usize)>,
    limits: Vec<Limit>,
}

/// A line with a rule.
#[derive(Debug)]
struct Limit {
    rule: String,
    line: usize,
    /// As the API takes it.
    numbers: Value,
}

impl User {
    /// The user as the API takes it.
    pub(super) fn to_json(&self) -> Value {
        let mut user = json!({"user_id": self.user_id});
        if let Some((tier, _)) = &self.tier {
            user["tier"] = tier.as_str().into();
        }
        if !self.limits.is_empty() {
            let limits = self.limits.iter().map(|limit| (limit.rule.clone(), limit.numbers.clone()));
            user["custom_limits"] = Value::Object(limits.collect());
        }
        user
    }

    /// The line of a field of this user, such as `custom_limits.per-user.limit`, and the name of
    /// its column.
    fn locate<'f>(&self, field: &'f str) -> (usize, &'f str) {
        if let Some(path) = field.strip_prefix("custom_limits.") {
            let matches = |limit: &&Limit| {
                path.strip_prefix(limit.rule.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            // Names can contain dots, so that several of them can match.
            let limit = self.limits.iter().filter(matches).max_by_key(|limit| limit.rule.len());
            if let Some(limit) = limit {
                let column = path[limit.rule.len()..].trim_start_matches('.');
                return (limit.line, if column.is_empty() { "rule" } else { column });
            }
        }
        match &self.tier {
            Some((_, line)) if field == "tier" => (*line, field),
            _ => (self.line, field),
        }
    }
}

impl Table {
    pub(super) fn parse(text: &str) -> Self {
        let mut table = Self::default();
        if let Err(error) = table.read(text) {
            table.errors.push(error);
        }
        table
    }

    fn read(&mut self, text: &str) -> Result<(), LineError> {
        let records = csv::parse(text);
        let records =
            records.map_err(|error| LineError { line: error.line, reason: error.reason.to_owned() })?;
        let mut records = records.into_iter();
        let header = records.next().unwrap_or(Record { line: 1, fields: Vec::new() });
        let columns = columns(&header).map_err(|reason| LineError { line: header.line, reason })?;
        let mut known: HashMap<String, usize> = HashMap::new();
        let mut invalid: Vec<bool> = Vec::new();
        for record in records {
            let line = record.line;
            let index =
                record.fields.get(columns["user_id"]).filter(|user_id| !user_id.is_empty()).map(|id| {
                    *known.entry(id.clone()).or_insert_with(|| {
                        invalid.push(false);
                        self.users.push(User { user_id: id.clone(), line, tier: None, limits: Vec::new() });
                        self.users.len() - 1
                    })
                });
            let user = index.map(|index| &mut self.users[index]);
            if let Err(reason) = add(user, &record, &columns) {
                self.errors.push(LineError { line, reason });
                if let Some(index) = index {
                    invalid[index] = true;
                }
            }
        }
        let mut invalid = invalid.into_iter();
        self.users.retain(|_| !invalid.next().unwrap_or_default());
        Ok(())
    }

    /// The errors of a response, with the lines that they are about.
    pub(super) fn locate(&self, response: &Value) -> Vec<LineError> {
        let listed = response["errors"].as_array();
        let listed = listed.map(Vec::as_slice).unwrap_or_default();
        // A body that cannot be decoded has one error.
        let single = Some(&response["error"]["details"]).filter(|_| listed.is_empty());
        listed.iter().chain(single).filter_map(|error| self.locate_one(error)).collect()
    }

    fn locate_one(&self, error: &Value) -> Option<LineError> {
        let (field, reason) = (error["field"].as_str()?, error["reason"].as_str()?);
        let (index, field) = field.strip_prefix("users[")?.split_once("].")?;
        let user = self.users.get(index.parse::<usize>().ok()?)?;
        let (line, column) = user.locate(field);
        Some(LineError { line, reason: format!("{column}: {reason}") })
    }
}

/// The position of each column.
fn columns(header: &Record) -> Result<HashMap<&'static str, usize>, String> {
    let mut columns = HashMap::new();
    for (position, name) in header.fields.iter().enumerate() {
        let known = COLUMNS.iter().find(|column| *column == name);
        let column = known
            .ok_or_else(|| format!("unknown column `{name}`; expected one of {}", COLUMNS.join(", ")))?;
        if columns.insert(*column, position).is_some() {
            return Err(format!("duplicate column `{name}`"));
        }
    }
    if !columns.contains_key("user_id") {
        return Err(format!(
            "expected a header with the column user_id and any of {}",
            COLUMNS[1..].join(", ")
        ));
    }
    Ok(columns)
}

/// Adds a line to its user.
fn add(
    user: Option<&mut User>,
    record: &Record,
    columns: &HashMap<&'static str, usize>,
) -> Result<(), String> {
    // Each record has as many fields as the header.
    let expected = columns.len();
    if record.fields.len() != expected {
        return Err(format!("expected {expected} fields, got {}", record.fields.len()));
    }
    let field = |name: &str| {
        let field = columns.get(name).and_then(|position| record.fields.get(*position));
        field.map(String::as_str).filter(|field| !field.is_empty())
    };
    let user = user.ok_or("user_id: must not be empty")?;
    if let Some(tier) = field("tier") {
        match &user.tier {
            Some((other, line)) if other != tier => {
                return Err(format!("tier: got `{tier}`, but line {line} has `{other}` for the same user"));
            }
            Some(_) => {}
            None => user.tier = Some((tier.to_owned(), record.line)),
        }
    }
    let Some(rule) = field("rule") else {
        if let Some(name) =
            ["limit", "window_seconds", "burst_capacity"].into_iter().find(|name| field(name).is_some())
        {
            return Err(format!("`{name}` requires `rule`"));
        }
        return if field("tier").is_some() { Ok(()) } else { Err("expected a tier or a rule".to_owned()) };
    };
    if let Some(other) = user.limits.iter().find(|limit| limit.rule == rule) {
        return Err(format!("duplicate rule `{rule}`; line {} has it for the same user", other.line));
    }
    let limit = field("limit").ok_or("`rule` requires `limit`")?;
    let mut numbers = Map::from_iter([("limit".to_owned(), whole("limit", limit)?)]);
    if let Some(window) = field("window_seconds") {
        numbers.insert("window_seconds".to_owned(), number("window_seconds", window)?);
    }
    if let Some(burst) = field("burst_capacity") {
        numbers.insert("burst_capacity".to_owned(), whole("burst_capacity", burst)?);
    }
    let limit = Limit { rule: rule.to_owned(), line: record.line, numbers: numbers.into() };
    user.limits.push(limit);
    Ok(())
}

fn whole(column: &str, text: &str) -> Result<Value, String> {
    text.parse::<u64>()
        .map(Value::from)
        .map_err(|_| format!("{column}: expected a positive whole number, got `{text}`"))
}

fn number(column: &str, text: &str) -> Result<Value, String> {
    let fraction = || text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from);
    text.parse::<u64>()
        .ok()
        .map(Value::from)
        .or_else(fraction)
        .ok_or_else(|| format!("{column}: expected a number of seconds, got `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(table: &[LineError]) -> Vec<(usize, &str)> {
        table.iter().map(|error| (error.line, error.reason.as_str())).collect()
    }

    #[test]
    fn lines_of_one_user_are_merged() {
        let table = Table::parse(
            "rule,user_id,tier,limit,window_seconds\n,alice,gold,,\na,bob,,5,60\nb,bob,free,7,0.5\n",
        );
        assert_eq!(errors(&table.errors), []);
        let users: Vec<Value> = table.users.iter().map(User::to_json).collect();
        let custom =
            json!({"a": {"limit": 5, "window_seconds": 60}, "b": {"limit": 7, "window_seconds": 0.5}});
        let expected = [
            json!({"user_id": "alice", "tier": "gold"}),
            json!({"user_id": "bob", "tier": "free", "custom_limits": custom}),
        ];
        assert_eq!(users, expected);
    }

    #[test]
    fn every_invalid_line_is_reported() {
        let table = Table::parse(
            "user_id,tier,rule,limit,window_seconds,burst_capacity\n\
             ok,gold,,,,\n,gold,,,,\na,gold\nb,,,,,\nc,,,5,,\nd,,r,,,\ne,,r,-1,,\nf,,r,1,x,\n\
             g,gold,r,1,,\ng,free,,,,\ng,gold,r,2,,\n",
        );
        let expected = [
            (3, "user_id: must not be empty"),
            (4, "expected 6 fields, got 2"),
            (5, "expected a tier or a rule"),
            (6, "`limit` requires `rule`"),
            (7, "`rule` requires `limit`"),
            (8, "limit: expected a positive whole number, got `-1`"),
            (9, "window_seconds: expected a number of seconds, got `x`"),
            (11, "tier: got `free`, but line 10 has `gold` for the same user"),
            (12, "duplicate rule `r`; line 10 has it for the same user"),
        ];
        assert_eq!(errors(&table.errors), expected);
        assert_eq!(table.users.iter().map(|user| user.user_id.as_str()).collect::<Vec<_>>(), ["ok"]);
    }

    #[test]
    fn header_is_checked() {
        for (text, reason) in [
            ("", "expected a header with the column user_id"),
            ("tier\n", "expected a header with the column user_id"),
            ("user_id,tear\n", "unknown column `tear`; expected one of user_id, tier, rule"),
            ("user_id,user_id\n", "duplicate column `user_id`"),
        ] {
            let table = Table::parse(text);
            assert!(table.errors[0].reason.starts_with(reason), "{text}: {:?}", table.errors);
            assert_eq!(table.errors[0].line, 1);
        }
    }

    #[test]
    fn errors_of_the_service_have_their_lines() {
        let table = Table::parse("user_id,tier,rule,limit\na,gold,,\nb,,r,1\nb,,r.x,2\nb,x,,\n");
        let response = json!({"errors": [
            {"field": "users[1].custom_limits.r.limit", "reason": "too large"},
            {"field": "users[1].custom_limits.r.x", "reason": "unknown rule"},
            {"field": "users[1].tier", "reason": "too long"},
            {"field": "users[0].user_id", "reason": "bad"},
        ]});
        let expected =
            [(3, "limit: too large"), (4, "rule: unknown rule"), (5, "tier: too long"), (2, "user_id: bad")];
        assert_eq!(errors(&table.locate(&response)), expected);
        let response = json!({"error": {"details": {"field": "users[0].tier", "reason": "bad"}}});
        assert_eq!(errors(&table.locate(&response)), [(2, "tier: bad")]);
        assert_eq!(table.locate(&json!({"error": {"details": {"field": "users", "reason": "many"}}})), []);
    }
}
