//! Forgets every variant of a counter: Redis has no order of keys, so the server that has them is searched.

use std::sync::Arc;

use pacegate_core::Variants;
use pacegate_store::{Command, StoreError};
use redis::{Cmd, Value};

use crate::connection::Node;
use crate::error::{Trouble, is_replica, trouble};
use crate::keys::{identity_prefix, slot};
use crate::store::RedisStore;

/// How many keys Redis looks at for one step: about a third of a millisecond.
const STEP: usize = 1_000;
/// How many keys are removed at once.
const REMOVED_MAX: usize = 500;

impl RedisStore {
    /// Forgets the variants of a command's counters, one identity after the other.
    pub(crate) async fn forget(&self, command: &Command<'_>) -> Result<(), StoreError> {
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
            self.forget_identity(prefix, variants, command).await?;
        }
        Ok(())
    }

    async fn forget_identity(
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
            let Value::Array(reply) = run(&node, slot, &scan, command).await? else { return Err(nonsense()) };
            let [Value::BulkString(next), Value::Array(keys)] = reply.as_slice() else {
                return Err(nonsense());
            };
            let mut found = Vec::new();
            for key in keys {
                let Value::BulkString(key) = key else { return Err(nonsense()) };
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
        Ok(Value::ServerError(error)) => Err(match trouble(&error, command) {
            Trouble::Final(error) => error,
            Trouble::NotNow { message, .. } => StoreError::unavailable(message),
            Trouble::Replica => {
                let error = is_replica(&node.address);
                node.leave(&error);
                error
            }
            Trouble::NoScript | Trouble::Elsewhere { .. } => {
                StoreError::unavailable("a slot of the Cluster is being moved")
            }
        }),
        Ok(value) => Ok(value),
        Err(error) => {
            live.discard();
            // What was forgotten stays forgotten, and forgetting again does no harm.
            Err(StoreError::unavailable(format!("the connection was lost: {error}")))
        }
    }
}

fn nonsense() -> StoreError {
    StoreError::rejected("Redis answered SCAN in an unknown form")
}

/// The text with the characters escaped that mean something else in a pattern.
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
