//! What an error of Redis means: send it again, or give up, and in which words.

use pacegate_store::{Command, StoreError};
use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::url::Address;

/// What to do about a reply that is not an answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The script is not there; it did not run.
    NoScript,
    /// Another node has the slot, from now on or just for this once.
    Elsewhere { address: Address, ask: bool },
    /// The server cannot work now; nothing ran.
    NotNow { message: &'static str, primary_changed: bool },
    /// The server is a replica; nothing ran.
    Replica,
    /// It does not help to send it again.
    Final(StoreError),
}

/// What an error reply says about `command`, which it surely did not run.
pub(crate) fn trouble(error: &ServerError, command: &Command<'_>) -> Trouble {
    let not_now = |message, primary_changed| Trouble::NotNow { message, primary_changed };
    let details = error.details().unwrap_or_default();
    match error.code() {
        "NOSCRIPT" => Trouble::NoScript,
        code @ ("MOVED" | "ASK") => match redirect(details) {
            Some(address) => Trouble::Elsewhere { address, ask: code == "ASK" },
            None => not_now("the Cluster points to a node without an address", true),
        },
        "TRYAGAIN" => not_now("a slot of the Cluster is being moved", false),
        "CLUSTERDOWN" => not_now("the Cluster is down", true),
        "MASTERDOWN" => not_now("the replica has lost its primary", true),
        "LOADING" => not_now("Redis is loading its data", false),
        "READONLY" => Trouble::Replica,
        "BUSY" => Trouble::Final(StoreError::unavailable("Redis is busy with another script")),
        "OOM" => Trouble::Final(StoreError::full("Redis has no memory left (maxmemory)", places(details))),
        "NEWKEY" => Trouble::Final(StoreError::over_budget(places(details))),
        "MISCONF" => {
            Trouble::Final(StoreError::unavailable("Redis cannot save its data and refuses to write"))
        }
        "NOREPLICAS" => {
            Trouble::Final(StoreError::unavailable("too few replicas for Redis to accept writes"))
        }
        "FOREIGN" => Trouble::Final(foreign(details, command)),
        "WRONGTYPE" => Trouble::Final(foreign_record()),
        "NOAUTH" | "WRONGPASS" => {
            Trouble::Final(StoreError::rejected("Redis refuses the user or the password"))
        }
        "NOPERM" => {
            Trouble::Final(StoreError::rejected(format!("the Redis user may not do this: {details}")))
        }
        "CROSSSLOT" => Trouble::Final(StoreError::rejected(
            "the URL is of a single server, but it is part of a Cluster; use redis+cluster://",
        )),
        code => Trouble::Final(StoreError::rejected(format!("Redis refuses the script: {code} {details}"))),
    }
}

/// The places of charges that the script counts from 1.
fn places(details: &str) -> impl Iterator<Item = usize> {
    details.split(' ').filter_map(|place| place.parse::<usize>().ok()?.checked_sub(1))
}

fn foreign_record() -> StoreError {
    StoreError::foreign("an idempotency key's record holds a value that Pacegate did not write")
}

fn foreign(details: &str, command: &Command<'_>) -> StoreError {
    if details.starts_with("record") {
        return foreign_record();
    }
    // The rule and not the key, which has an identifier in it.
    let place = details.split(' ').next().and_then(|place| place.parse::<usize>().ok()).unwrap_or(1);
    let rule = command.charges.get(place.saturating_sub(1)).map_or("", |charge| charge.key.counter().rule());
    StoreError::foreign(format!("a key of rule `{rule}` holds a value that Pacegate did not write"))
}

/// `slot host:port`; an empty host means the node that said so, which a caller cannot know here.
fn redirect(details: &str) -> Option<Address> {
    let (_, address) = details.split_once(' ')?;
    let (host, port) = address.rsplit_once(':')?;
    (!host.is_empty()).then_some(Address { host: host.to_owned(), port: port.parse().ok()? })
}

/// A server whose answers do not count, because another one is the primary; nothing ran.
pub(crate) fn is_replica(address: &Address) -> StoreError {
    StoreError::unavailable(format!("{address} is a replica, not the primary"))
}

/// A connection that could not be made; nothing ran.
pub(crate) fn not_connected(address: &Address, error: &RedisError) -> StoreError {
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            StoreError::rejected(format!("{address} refuses the user or the password"))
        }
        ErrorKind::Parse => StoreError::rejected(format!("{address} does not speak the Redis protocol")),
        ErrorKind::Server(redis::ServerErrorKind::BusyLoading) => {
            StoreError::unavailable(format!("{address} is loading its data"))
        }
        ErrorKind::Io => StoreError::unavailable(format!("{address}: {}", plain(error))),
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => {
            StoreError::rejected(format!("{address} refuses the user or the password"))
        }
        _ => StoreError::rejected(format!("{address}: {error}")),
    }
}

/// The words of an I/O error without the driver's.
fn plain(error: &RedisError) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// An answer, or an error reply.
pub(crate) fn answered(value: Value) -> Result<Vec<u8>, ReplyError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::ServerError(error) => Err(ReplyError::Server(error)),
        _ => Err(ReplyError::Nonsense),
    }
}

/// A reply that is not the script's.
#[derive(Debug)]
pub(crate) enum ReplyError {
    Server(ServerError),
    Nonsense,
}
