//! `server`: where the service listens, to whom, and for how long.

use std::time::Duration;

use crate::node::Value;
use crate::read::bounded;
use crate::reader::{Field, Fields, Mistakes};
use crate::{Role, ServerConfig, TlsConfig};
use pacegate_http::{CertificateName, TlsFiles};

const IDENTITIES_MAX: usize = 10_000;
/// Four of the largest bodies.
const REQUEST_MEMORY_MIN: u64 = 1 << 20;
const REQUEST_MEMORY_MAX: u64 = 1 << 40;
const CHECKS_PER_SECOND_MAX: u64 = 1_000_000_000;

pub(super) fn read_server(field: Field, server: &mut ServerConfig, mistakes: &mut Mistakes) {
    let Some(mut fields) = Fields::new(field, mistakes) else { return };
    if let Some(http) = fields.take("http").and_then(|field| field.parsed(mistakes)) {
        server.http = http;
    }
    for (name, address) in [("grpc", &mut server.grpc), ("admin", &mut server.admin)] {
        if let Some(field) = fields.take(name) {
            *address = match &field.node.value {
                Value::Text(text) if text == "none" => None,
                _ => field.parsed(mistakes),
            };
        }
    }
    for (name, networks) in
        [("admin_allow", &mut server.admin_allow), ("trusted_proxies", &mut server.trusted_proxies)]
    {
        if let Some(field) = fields.take(name) {
            *networks = field.list(mistakes).iter().filter_map(|item| item.parsed(mistakes)).collect();
        }
    }
    if let Some(required) = fields.take("require_key").and_then(|field| field.flag(mistakes)) {
        server.require_key = required;
    }
    server.tls = fields.take("tls").and_then(|field| read_tls(field, mistakes));
    for (name, max, target) in [
        ("max_connections", 1_000_000, &mut server.max_connections),
        ("max_streams", 10_000, &mut server.max_streams),
    ] {
        if let Some(number) = fields.take(name).and_then(|field| bounded(&field, 1, max, mistakes)) {
            *target = number;
        }
    }
    if let Some(field) = fields.take("max_connections_per_address") {
        server.max_connections_per_address = bounded(&field, 1, 1_000_000, mistakes);
    }
    if let Some(field) = fields.take("max_checks_per_second") {
        server.max_checks_per_second = match &field.node.value {
            Value::Text(text) if text == "none" => None,
            _ => bounded(&field, 1, CHECKS_PER_SECOND_MAX, mistakes).map(|number| number as u64),
        };
    }
    if let Some(field) = fields.take("max_request_memory")
        && let Some(bytes) = field.size(mistakes)
    {
        if !(REQUEST_MEMORY_MIN..=REQUEST_MEMORY_MAX).contains(&bytes) {
            mistakes.add(&field.node.place, &field.path, "must be between 1MiB and 1024GiB");
        }
        server.max_request_memory = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    if let Some(bits) = fields.take("ipv6_prefix").and_then(|field| bounded(&field, 1, 128, mistakes)) {
        server.ipv6_prefix = u8::try_from(bits).unwrap_or(server.ipv6_prefix);
    }
    let tenth = Duration::from_millis(100);
    for (name, least, target) in [
        ("idle_timeout", tenth, &mut server.idle_timeout),
        ("request_timeout", tenth, &mut server.request_timeout),
        ("drain_delay", Duration::ZERO, &mut server.drain_delay),
    ] {
        if let Some(field) = fields.take(name)
            && let Some(duration) = field.duration(mistakes)
        {
            if duration < least || duration > Duration::from_secs(3_600) {
                let message = format!("must be between {} and 1h", humantime::format_duration(least));
                mistakes.add(&field.node.place, &field.path, message);
            }
            *target = duration;
        }
    }
    fields.finish(mistakes);
}

fn read_tls(field: Field, mistakes: &mut Mistakes) -> Option<TlsConfig> {
    let (place, path) = (field.node.place.clone(), field.path.clone());
    let mut fields = Fields::new(field, mistakes)?;
    let [cert, key] = ["cert", "key"].map(|name| fields.require(name, mistakes));
    let cert = cert.and_then(|field| field.text(mistakes));
    let key = key.and_then(|field| field.text(mistakes));
    let client_ca = fields.take("client_ca").and_then(|field| field.text(mistakes));
    let client_crl = fields.take("client_crl").and_then(|field| field.text(mistakes));
    if client_crl.is_some() && client_ca.is_none() {
        mistakes.add(&place, &path, "client_crl needs client_ca: without it clients show no certificates");
    }
    let mut identities = Vec::new();
    if let Some(field) = fields.take("identities") {
        for (name, field) in field.entries(mistakes) {
            let name = name.parse::<CertificateName>().map_err(|invalid| {
                mistakes.add(&field.node.place, &field.path, invalid.to_string());
            });
            let role = field.named::<Role>(mistakes);
            if let (Ok(name), Some(role)) = (name, role) {
                identities.push((name, role));
            }
        }
        if client_ca.is_none() {
            mistakes.add(&place, &path, "identities need client_ca: without it nobody shows a certificate");
        }
        if identities.len() > IDENTITIES_MAX {
            let message = format!("can have at most {IDENTITIES_MAX} identities");
            mistakes.add(&place, &path, message);
        }
    }
    fields.finish(mistakes);
    Some(TlsConfig {
        files: TlsFiles {
            cert: cert?.into(),
            key: key?.into(),
            client_ca: client_ca.map(Into::into),
            client_crl: client_crl.map(Into::into),
        },
        identities,
    })
}
