//! `stores` and `failure`: where counters are kept, and what happens when that place fails.

use std::time::Duration;

use pacegate::MemoryOptions;
use pacegate::identity::check_store;

use crate::read::bounded;
use crate::reader::{Field, Fields, Mistakes};
use crate::{Config, StoreConfig, StoreTls};

/// How long a store may take; less than a millisecond never succeeds, and nobody waits for more.
const TIMEOUT_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(10);
const STORES_MAX: usize = 64;
/// What a store's URL can start with.
const SCHEMES: [&str; 6] =
    ["redis://", "rediss://", "redis+sentinel://", "redis+cluster://", "mysql://", "postgres://"];
const SHARDS_MAX: usize = 64;

pub(super) fn read_stores(field: Field, stores: &mut Vec<StoreConfig>, mistakes: &mut Mistakes) {
    let (place, path) = (field.node.place.clone(), field.path.clone());
    for (name, field) in field.entries(mistakes) {
        if let Err(invalid) = check_store(&name) {
            mistakes.add(&field.node.place, &field.path, format!("a store's name {}", invalid.reason()));
        }
        let store = read_store(name, field, mistakes);
        match stores.iter_mut().find(|other| other.name == store.name) {
            Some(other) => *other = store,
            None => stores.push(store),
        }
    }
    if stores.len() > STORES_MAX {
        mistakes.add(
            &place,
            &path,
            format!("{} stores are more than the {STORES_MAX} that are allowed", stores.len()),
        );
    }
}

fn read_store(name: String, field: Field, mistakes: &mut Mistakes) -> StoreConfig {
    let mut store = StoreConfig::new(&name, StoreConfig::MEMORY);
    store.place = field.node.place.to_string();
    let Some(mut fields) = Fields::new(field, mistakes) else { return store };
    let mut has_url = false;
    if let Some(field) = fields.take("url")
        && let Some(url) = field.text(mistakes)
    {
        if url != StoreConfig::MEMORY && !SCHEMES.iter().any(|scheme| url.starts_with(scheme)) {
            // Not the URL itself, which may hold a password.
            let message = format!("must be `memory:` or start with {}", SCHEMES.join(", "));
            mistakes.add(&field.node.place, &field.path, message);
        }
        store.url = url;
        has_url = true;
    }
    if let Some(field) = fields.take("shards") {
        let (place, path) = (field.node.place.clone(), field.path.clone());
        store.shards = field.list(mistakes).iter().filter_map(|item| item.text(mistakes)).collect();
        let known = |url: &String| SCHEMES.iter().any(|scheme| url.starts_with(scheme));
        if !(1..=SHARDS_MAX).contains(&store.shards.len()) || !store.shards.iter().all(known) {
            let message = format!("must be 1 to {SHARDS_MAX} URLs that start with {}", SCHEMES.join(", "));
            mistakes.add(&place, &path, message);
        }
        if has_url {
            mistakes.add(&place, &path, "goes instead of url, not with it");
        }
    }
    let in_memory = store.is_memory();
    let mut only_for = |field: &Field, wanted: bool, kind: &str| {
        if in_memory != wanted {
            mistakes.add(&field.node.place, &field.path, format!("is only for {kind}"));
        }
    };
    let numbers = ["max_keys", "max_idempotency_keys", "connections", "new_keys_per_second"]
        .map(|name| fields.take(name));
    let tls = fields.take("tls");
    for field in numbers[..2].iter().flatten() {
        only_for(field, true, "a store in memory");
    }
    for field in numbers[2..].iter().flatten().chain(&tls) {
        only_for(field, false, "a store elsewhere");
    }
    let [max_keys, max_idempotency_keys, connections, new_keys_per_second] = numbers;
    let keys_max = MemoryOptions::KEYS_MAX as u64;
    if let Some(number) = max_keys.and_then(|field| bounded(&field, 1, keys_max, mistakes)) {
        store.memory.max_keys = number;
    }
    if let Some(number) = max_idempotency_keys.and_then(|field| bounded(&field, 1, keys_max, mistakes)) {
        store.memory.max_idempotency_keys = number;
    }
    store.connections = connections.and_then(|field| bounded(&field, 1, 64, mistakes));
    let new_keys = new_keys_per_second.and_then(|field| bounded(&field, 1, 1_000_000_000, mistakes));
    store.new_keys_per_second = new_keys.map(|number| number as u64);
    if let Some(field) = tls {
        store.tls = read_store_tls(field, mistakes);
    }
    fields.finish(mistakes);
    store
}

pub(super) fn read_store_tls(field: Field, mistakes: &mut Mistakes) -> StoreTls {
    let (place, path) = (field.node.place.clone(), field.path.clone());
    let mut tls = StoreTls::default();
    let Some(mut fields) = Fields::new(field, mistakes) else { return tls };
    for (name, target) in [("ca", &mut tls.ca), ("cert", &mut tls.cert), ("key", &mut tls.key)] {
        *target = fields.take(name).and_then(|field| field.text(mistakes)).map(Into::into);
    }
    if tls.cert.is_some() != tls.key.is_some() {
        mistakes.add(&place, &path, "cert and key go together");
    }
    fields.finish(mistakes);
    tls
}

pub(super) fn read_failure(field: Field, config: &mut Config, mistakes: &mut Mistakes) {
    let Some(mut fields) = Fields::new(field, mistakes) else { return };
    if let Some(mode) = fields.take("mode").and_then(|field| field.named(mistakes)) {
        config.failure_mode = mode;
    }
    for (name, target) in
        [("timeout", &mut config.store_timeout), ("envoy_timeout", &mut config.envoy_store_timeout)]
    {
        if let Some(field) = fields.take(name)
            && let Some(timeout) = field.duration(mistakes)
        {
            if !TIMEOUT_RANGE.contains(&timeout) {
                mistakes.add(&field.node.place, &field.path, "must be between 1ms and 10s");
            }
            *target = timeout;
        }
    }
    fields.finish(mistakes);
}
