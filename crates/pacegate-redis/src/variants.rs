//! Resets every variant of a counter: Redis keys have no order, so the server that holds them is
//! scanned.

use std::sync::Arc;

use pacegate_core::Variants;
use pacegate_store::{Command, StoreError};
use redis::{Cmd, Value};

use crate::connection::Node;
use crate::error::{Failure, classify, is_replica};
use crate::keys::{identity_prefix, slot};
use crate::store::RedisStore;

/// Number of keys that Redis scans in one step: about a third of a millisecond.
const STEP: usize = 1_000;
/// Maximum number of keys removed by one command.
const REMOVED_MAX: usize = 500;

impl RedisStore {
    /// Removes the variants of a command's counters, one identity after another.
    pub(crate) async fn unlink_variants(&self, command: &Command<'_>) -> Result<(), StoreError> {
        let mut identities: Vec<(String, Vec<Variants>)> = Vec::new();
        for charge in command.charges {
            let Some(mut variants) = charge.key.variants() else { continue };
            let prefix = identity_prefix(&charge.key);
            variants.before.insert_str(0, &prefix);
            match identities.iter_mut().find(|(other, _)| *other == prefix) {
                Some((_, own)) => own.push(variants),
                None => identities.push((prefix, vec![variants])),
            }
        }
        for (prefix, variants) in &identities {
            self.unlink_variants_of(prefix, variants, command).await?;
        }
        Ok(())
    }

    async fn unlink_variants_of(
        &self,
        prefix: &str,
        variants: &[Variants],
        command: &Command<'_>,
    ) -> Result<(), StoreError> {
        let slot = slot(prefix);
        let node = self.owner(slot)?;
        let pattern = format!("{}*", escaped(prefix));
        let mut cursor = b"0".to_vec();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor[..]).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
            let Value::Array(reply) = run(&node, slot, &scan, command).await? else {
                return Err(unexpected_reply());
            };
            let [Value::BulkString(next), Value::Array(keys)] = reply.as_slice() else {
                return Err(unexpected_reply());
            };
            let mut found = Vec::new();
            for key in keys {
                let Value::BulkString(key) = key else { return Err(unexpected_reply()) };
                let text = std::str::from_utf8(key).unwrap_or_default();
                if variants.iter().any(|variants| variants.contain(text)) {
                    found.push(key);
                }
            }
            for some in found.chunks(REMOVED_MAX) {
                let mut unlink = redis::cmd("UNLINK");
                some.iter().for_each(|key| {
                    unlink.arg(&key[..]);
                });
                run(&node, slot, &unlink, command).await?;
            }
            if **next == *b"0" {
                return Ok(());
            }
            cursor.clone_from(next);
        }
    }
}

/// Runs one command that may run twice.
pub(crate) async fn run(
    node: &Arc<Node>,
    slot: u16,
    call: &Cmd,
    command: &Command<'_>,
) -> Result<Value, StoreError> {
    let mut live = node.connection(slot).await?;
    let watched = live.clone();
    let watch = watched.watch();
    let reply = live.connection.send_packed_command(call).await;
    watch.answered();
    match reply {
        Ok(Value::ServerError(error)) => Err(match classify(&error, command) {
            Failure::Final(error) => error,
            Failure::Unavailable { message, .. } => StoreError::unavailable(message),
            Failure::Replica => {
                let error = is_replica(&node.address);
                node.disconnect(&error);
                error
            }
            Failure::NoScript | Failure::Redirect { .. } => {
                StoreError::unavailable("a cluster slot is being migrated")
            }
        }),
        Ok(value) => Ok(value),
        Err(error) => {
            live.discard();
            // Removing keys twice is harmless.
            Err(StoreError::unavailable(format!("connection lost: {error}")))
        }
    }
}

fn unexpected_reply() -> StoreError {
    StoreError::rejected("unexpected reply to SCAN")
}

/// Escapes the special characters of patterns.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}
