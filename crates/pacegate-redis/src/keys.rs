//! Key names in Redis: `rl:{dimension:identifier}:rule:scope`, so that all limits of one identity
//! share a slot.

use pacegate_core::Key;
use pacegate_store::{Command, Idempotency};
use smallvec::SmallVec;

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The name of a counter's key.
pub(crate) fn counter_key(key: &Key<'_>) -> String {
    let mut text = identity_prefix(key);
    key.write_counter(&mut text);
    text
}

/// The prefix of the names of all counters of an identity.
pub(crate) fn identity_prefix(key: &Key<'_>) -> String {
    let mut text = String::with_capacity(64);
    text.push_str("rl:{");
    key.write_identity(&mut text);
    text.push_str("}:");
    text
}

/// The name of an idempotency key's record. `at_home` puts it in the slot of its home's counters,
/// so that a script can reach both; otherwise one key is one record for all callers.
pub(crate) fn record_key(idempotency: &Idempotency<'_>, at_home: bool) -> String {
    let mut text = String::from("rl:{");
    // The length separates caller and key unambiguously.
    let own = format!("idempotency:{}:{}:{}", idempotency.caller.len(), idempotency.caller, idempotency.key);
    match idempotency.home.filter(|_| at_home) {
        Some(home) => {
            home.write(&mut text);
            text.push_str("}:");
            text.push_str(&own);
        }
        None => {
            // Braces in it would end the tag early.
            text.push_str(&own.replace(['{', '}'], "_"));
            text.push_str("}:");
            text.push_str(&own);
        }
    }
    text
}

/// The slot of a key's tag.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or(key, |(tag, _)| tag);
    slot_of_tag(tag)
}

fn slot_of_tag(tag: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % SLOTS
}

/// The slot of a counter, without its name: it depends on the identity alone.
pub(crate) fn slot_of(key: &Key<'_>) -> u16 {
    let mut tag = String::with_capacity(48);
    key.write_identity(&mut tag);
    slot_of_tag(&tag)
}

/// The slot of an idempotency key's record.
pub(crate) fn slot_of_record(idempotency: &Idempotency<'_>) -> u16 {
    match idempotency.home {
        Some(home) => {
            let mut tag = String::with_capacity(48);
            home.write(&mut tag);
            slot_of_tag(&tag)
        }
        None => slot(&record_key(idempotency, true)),
    }
}

/// The names of all keys that a command touches.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) names: SmallVec<[String; 2]>,
    /// Whether the last one is the record of an idempotency key.
    pub(crate) has_record: bool,
}

impl Keys {
    /// `cluster` puts the record of an idempotency key into the slot of its home.
    pub(crate) fn of(command: &Command<'_>, cluster: bool) -> Self {
        let mut names: SmallVec<[String; 2]> =
            command.charges.iter().map(|charge| counter_key(&charge.key)).collect();
        let idempotency = command.idempotency();
        names.extend(idempotency.map(|idempotency| record_key(&idempotency, cluster)));
        Self { names, has_record: idempotency.is_some() }
    }

    /// The slot of the first key; commands without keys can go anywhere.
    pub(crate) fn slot(&self) -> u16 {
        self.names.first().map_or(0, |name| slot(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pacegate_core::{Counter, Identity};

    #[test]
    fn limits_of_one_identity_share_a_slot() {
        let counters = [Counter::new("a", "user", "*"), Counter::per_endpoint("b", "user", "/x/{id}")];
        for identifier in ["u1", "{u1}", "u:1", "é", &"x".repeat(2_000)] {
            let names = counters
                .each_ref()
                .map(|counter| counter_key(&Key::new(counter, identifier, "/long".repeat(200).as_str())));
            assert_eq!(slot(&names[0]), slot(&names[1]), "{names:?}");
            assert_eq!(slot_of(&Key::new(&counters[0], identifier, "")), slot(&names[0]), "{names:?}");
            let home = Some(Identity { dimension: "user", identifier });
            let idempotency =
                Idempotency { caller: "c", key: "{k}", fingerprint: [0; 16], home, sender: None };
            assert_eq!(slot_of_record(&idempotency), slot(&names[0]), "{names:?}");
            let idempotency = Idempotency { home: None, ..idempotency };
            assert_eq!(slot_of_record(&idempotency), slot(&record_key(&idempotency, true)));
            assert!(names.iter().all(|name| name.len() <= 512), "{names:?}");
        }
    }

    #[test]
    fn slots_match_redis() {
        // From the cluster specification and `CLUSTER KEYSLOT`.
        assert_eq!(crc16::State::<crc16::XMODEM>::calculate(b"123456789"), 0x31c3);
        assert_eq!(slot("foo{hash_tag}"), 2_515);
        assert_eq!(slot("somekey"), 11_058);
    }
}
