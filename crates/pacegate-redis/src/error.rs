//! The meaning of Redis errors: whether to send a command again, and the message for operators.

use pacegate_store::{Command, StoreError};
use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::url::Address;

/// What to do about an error reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The script is not loaded; it did not run.
    NoScript,
    /// Another node serves the slot, permanently or for this command only.
    Redirect { address: Address, ask: bool },
    /// The server is temporarily unavailable; nothing ran.
    Unavailable { message: &'static str, primary_changed: bool },
    /// The server is a replica; nothing ran.
    Replica,
    /// Sending it again is pointless.
    Final(StoreError),
}

/// Classifies an error reply to `command`, which did not run.
pub(crate) fn classify(error: &ServerError, command: &Command<'_>) -> Failure {
    let unavailable = |message, primary_changed| Failure::Unavailable { message, primary_changed };
    let details = error.details().unwrap_or_default();
    match error.code() {
        "NOSCRIPT" => Failure::NoScript,
        code @ ("MOVED" | "ASK") => match redirect(details) {
            Some(address) => Failure::Redirect { address, ask: code == "ASK" },
            None => unavailable("the cluster redirected to a node without an address", true),
        },
        "TRYAGAIN" => unavailable("a cluster slot is being migrated", false),
        "CLUSTERDOWN" => unavailable("the cluster is down", true),
        "MASTERDOWN" => unavailable("the replica lost its primary", true),
        "LOADING" => unavailable("Redis is loading its dataset", false),
        "READONLY" => Failure::Replica,
        "BUSY" => Failure::Final(StoreError::unavailable("Redis is busy with another script")),
        "OOM" => {
            Failure::Final(StoreError::full("Redis is out of memory (maxmemory)", charge_indices(details)))
        }
        "NEWKEY" => Failure::Final(StoreError::over_budget(charge_indices(details))),
        "MISCONF" => {
            Failure::Final(StoreError::unavailable("Redis rejects writes because it cannot persist its data"))
        }
        "NOREPLICAS" => Failure::Final(StoreError::unavailable(
            "Redis rejects writes because too few replicas are connected",
        )),
        "FOREIGN" => Failure::Final(foreign(details, command)),
        "WRONGTYPE" => Failure::Final(foreign_record()),
        "NOAUTH" | "WRONGPASS" => {
            Failure::Final(StoreError::rejected("Redis rejected the user name or password"))
        }
        "NOPERM" => {
            Failure::Final(StoreError::rejected(format!("the Redis user lacks a permission: {details}")))
        }
        "CROSSSLOT" => Failure::Final(StoreError::rejected(
            "the server is part of a Redis Cluster; use a redis+cluster:// URL",
        )),
        code => Failure::Final(StoreError::rejected(format!("Redis rejected the script: {code} {details}"))),
    }
}

/// The indices of charges, which the script counts from 1.
fn charge_indices(details: &str) -> impl Iterator<Item = usize> {
    details.split(' ').filter_map(|index| index.parse::<usize>().ok()?.checked_sub(1))
}

fn foreign_record() -> StoreError {
    StoreError::foreign("the record of an idempotency key holds a value that Pacegate did not write")
}

fn foreign(details: &str, command: &Command<'_>) -> StoreError {
    if details.starts_with("record") {
        return foreign_record();
    }
    // The rule instead of the key, because the key contains an identifier.
    let index = details.split(' ').next().and_then(|index| index.parse::<usize>().ok()).unwrap_or(1);
    let rule = command.charges.get(index.saturating_sub(1)).map_or("", |charge| charge.key.counter().rule());
    StoreError::foreign(format!("a key of rule `{rule}` holds a value that Pacegate did not write"))
}

/// Parses `slot host:port`; an empty host means the node that replied, which is unknown here.
fn redirect(details: &str) -> Option<Address> {
    let (_, address) = details.split_once(' ')?;
    let (host, port) = address.rsplit_once(':')?;
    (!host.is_empty()).then_some(Address { host: host.to_owned(), port: port.parse().ok()? })
}

/// The error of a server that turned out to be a replica; nothing ran.
pub(crate) fn is_replica(address: &Address) -> StoreError {
    StoreError::unavailable(format!("{address} is a replica, not the primary"))
}

/// The error of a failed connection attempt; nothing ran.
pub(crate) fn not_connected(address: &Address, error: &RedisError) -> StoreError {
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            StoreError::rejected(format!("{address} rejected the user name or password"))
        }
        ErrorKind::Parse => StoreError::rejected(format!("{address} does not speak the Redis protocol")),
        ErrorKind::Server(redis::ServerErrorKind::BusyLoading) => {
            StoreError::unavailable(format!("{address} is loading its dataset"))
        }
        ErrorKind::Io => StoreError::unavailable(format!("{address}: {}", plain(error))),
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => {
            StoreError::rejected(format!("{address} rejected the user name or password"))
        }
        _ => StoreError::rejected(format!("{address}: {error}")),
    }
}

/// The message of an I/O error without the driver's prefix.
fn plain(error: &RedisError) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Splits a reply into the script's result and errors.
pub(crate) fn answered(value: Value) -> Result<Vec<u8>, ReplyError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::ServerError(error) => Err(ReplyError::Server(error)),
        _ => Err(ReplyError::Unexpected),
    }
}

/// A reply that is not the script's result.
#[derive(Debug)]
pub(crate) enum ReplyError {
    Server(ServerError),
    Unexpected,
}
