//! TLS over HTTP/1.1, HTTP/2 and gRPC: which clients are admitted, and with which identity.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod caller;
mod sockets;

use std::fs;
use std::path::Path;

use caller::{Caller, Connection, WIRES, Wire};
use pacegate_catalog::{Actor, AuditFilter};
use pacegate_testkit::server::{Authority, Signed, Validity};
use sockets::{Service, soon};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant};

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// A certificate authority, and the files of a service whose certificate it signed.
struct Files {
    directory: TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> Self {
        Self::with(Authority::new(), &NAMES, Validity::Now)
    }

    fn with(authority: Authority, names: &[&str], validity: Validity) -> Self {
        let directory = TempDir::new().unwrap();
        authority.server(names, validity).save(directory.path(), "server");
        fs::write(directory.path().join("authority.pem"), authority.certificate()).unwrap();
        Self { directory, authority }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a service with a certificate.
    async fn service(&self) -> Service {
        self.service_with("", "").await
    }

    /// Starts a service that also requires client certificates.
    async fn mutual(&self) -> Service {
        self.service_with("client_ca: {}/authority.pem", "").await
    }

    async fn service_with(&self, tls: &str, server: &str) -> Service {
        let tls = format!("cert: {{}}/server.pem, key: {{}}/server.key, {tls}");
        let tls = tls.replace("{}", &self.path().display().to_string());
        Service::start(&format!("server: {{tls: {{{tls}}}, {server}}}")).await
    }

    /// Returns a caller that trusts the authority and presents no certificate.
    fn caller(&self) -> Caller {
        Caller::trusting(&self.authority)
    }

    fn named(&self, names: &[&str]) -> Caller {
        self.caller().showing(self.authority.client(names, Validity::Now))
    }
}

async fn is_served(service: &Service, caller: &Caller) {
    for wire in WIRES {
        assert_eq!(caller.check(service, wire).await, Ok(200), "{wire:?}");
    }
}

/// Returns the bytes that arrive before the connection is closed.
async fn rest_of(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 1_024];
    while let Ok(count @ 1..) = soon(stream.read(&mut buffer)).await {
        bytes.extend_from_slice(&buffer[..count]);
    }
    bytes
}

#[tokio::test]
async fn client_and_service_agree_on_a_protocol() {
    let files = Files::new();
    let service = files.service().await;
    is_served(&service, &files.caller()).await;
    let agreed = async |offered: &[&str], address| {
        let stream = files.caller().stream(address, offered).await?;
        Ok::<_, String>(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
    };
    assert_eq!(agreed(&["http/1.1", "h2"], service.http).await, Ok(Some(b"h2".to_vec())));
    assert_eq!(agreed(&["http/1.1"], service.http).await, Ok(Some(b"http/1.1".to_vec())));
    assert_eq!(agreed(&[], service.http).await, Ok(None));
    assert_eq!(agreed(&["h2"], service.grpc).await, Ok(Some(b"h2".to_vec())));
    assert!(agreed(&["http/1.1"], service.grpc).await.is_err());
    assert!(agreed(&["spdy/1"], service.http).await.is_err());
}

#[tokio::test]
async fn clients_reject_a_service_with_an_invalid_certificate() {
    for (names, validity, expected) in [
        (&NAMES[..], Validity::Expired, "Expired"),
        (&NAMES, Validity::NotYetValid, "NotValidYet"),
        (&["example.org", "127.0.0.2"], Validity::Now, "NotValidForName"),
    ] {
        let files = Files::with(Authority::new(), names, validity);
        let service = files.service().await;
        for wire in WIRES {
            let reason = files.caller().check(&service, wire).await.unwrap_err();
            assert!(reason.contains(expected), "{wire:?} {reason}");
        }
    }
    let files = Files::new();
    let service = files.service().await;
    let stranger = Caller::trusting(&Authority::new());
    for wire in WIRES {
        let reason = stranger.check(&service, wire).await.unwrap_err();
        assert!(reason.contains("InvalidCertificate"), "{wire:?} {reason}");
    }
    is_served(&service, &files.caller()).await;
}

#[tokio::test]
async fn service_rejects_clients_with_an_invalid_certificate() {
    let files = Files::new();
    let service = files.mutual().await;
    let right = files.named(&["orders.example.org"]);
    is_served(&service, &right).await;
    let signed = |authority: &Authority, validity| authority.client(&["orders.example.org"], validity);
    let server = files.authority.server(&NAMES, Validity::Now);
    for (case, caller) in [
        ("no certificate", files.caller()),
        ("from another authority", files.caller().showing(signed(&Authority::new(), Validity::Now))),
        ("expired", files.caller().showing(signed(&files.authority, Validity::Expired))),
        ("not yet valid", files.caller().showing(signed(&files.authority, Validity::NotYetValid))),
        ("of a server", files.caller().showing(server)),
    ] {
        for wire in WIRES {
            // The client may appear connected, but gets no response.
            let reason = caller.check(&service, wire).await.unwrap_err();
            assert!(!reason.is_empty(), "{case} {wire:?}");
        }
        is_served(&service, &right).await;
    }
}

#[tokio::test]
async fn plain_text_to_a_tls_service_gets_no_response() {
    let files = Files::new();
    let service = files.service().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for (address, text) in [
        (service.http, &b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"[..]),
        (service.http, preface),
        (service.grpc, preface),
        (service.grpc, b"\0"),
        (service.http, &[0xff; 70_000]),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The connection may be closed before everything is sent.
        let _ = stream.write_all(text).await;
        let _ = stream.shutdown().await;
        let answer = rest_of(stream).await;
        // Only a TLS alert.
        assert!(answer.len() < 16 && [None, Some(&0x15)].contains(&answer.first()), "{answer:?}");
    }
    is_served(&service, &files.caller()).await;
}

#[tokio::test]
async fn tls_to_a_plain_service_closes_its_own_connection_only() {
    let files = Files::new();
    let service = Service::start("server: {idle_timeout: 1s}").await;
    for wire in WIRES {
        assert!(files.caller().check(&service, wire).await.is_err(), "{wire:?}");
        let stream = TcpStream::connect(wire.address(&service)).await.unwrap();
        let answer = Connection::over(stream, wire).await.unwrap().check(None).await;
        assert_eq!(answer, Ok(200), "{wire:?}");
    }
}

#[tokio::test]
async fn unfinished_handshake_times_out() {
    let files = Files::new();
    let service = files.service_with("", "idle_timeout: 300ms, max_connections: 1").await;
    for address in [service.http, service.grpc] {
        let silent = TcpStream::connect(address).await.unwrap();
        let since = Instant::now();
        assert!(rest_of(silent).await.is_empty());
        assert!(since.elapsed() >= Duration::from_millis(250), "{:?}", since.elapsed());

        let mut slow = TcpStream::connect(address).await.unwrap();
        let dribble = async {
            let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
            for byte in hello.iter().chain(std::iter::repeat(&0)) {
                if slow.write_all(&[*byte]).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        soon(dribble).await;
    }
    // The only slot is free again.
    is_served(&service, &files.caller()).await;
}

#[tokio::test]
async fn certificate_authenticates_its_owner() {
    let files = Files::new();
    let identities = "identities: {\"uri:spiffe://example.org/orders\": checker, \"email:ops@example.org\": admin, \"dns:Report.example.org\": reader, \"ip:10.0.0.7\": checker, \"ip:2001:db8::7\": checker}";
    let tls = format!("client_ca: {{}}/authority.pem, {identities}");
    let service = files.service_with(&tls, "require_key: true").await;
    for (names, check, reset) in [
        (&["spiffe://example.org/orders"][..], 200, 403),
        (&["ops@example.org"], 200, 200),
        (&["report.example.org"], 403, 403),
        (&["REPORT.example.org"], 403, 403),
        (&["10.0.0.7"], 200, 403),
        (&["2001:db8::7"], 200, 403),
        // The first name with a role applies.
        (&["unknown.example.org", "ops@example.org", "report.example.org"], 200, 200),
        // Names are compared as a whole.
        (&["spiffe://example.org/orders/2"], 401, 401),
        (&["spiffe://example.org/order"], 401, 401),
        (&["unknown.example.org"], 401, 401),
        (&[], 401, 401),
    ] {
        for wire in WIRES {
            let mut connection = files.named(names).open(&service, wire).await.unwrap();
            assert_eq!(connection.check(None).await, Ok(check), "check {names:?} {wire:?}");
            assert_eq!(connection.reset(None).await, Ok(reset), "reset {names:?} {wire:?}");
        }
    }
}

#[tokio::test]
async fn name_of_another_type_has_no_role() {
    let files = Files::new();
    let names = ["ops@example.org", "spiffe://ops", "127.0.0.1", "ops"];
    // Each name in a certificate, and the same text as another type.
    for (name, own) in names.into_iter().zip(["email", "uri", "ip", "dns"]) {
        for kind in ["dns", "uri", "email", "ip"].into_iter().filter(|kind| *kind != "ip" || own == "ip") {
            let tls = format!("client_ca: {{}}/authority.pem, identities: {{\"{kind}:{name}\": admin}}");
            let service = files.service_with(&tls, "").await;
            let mut connection = files.named(&[name]).open(&service, Wire::Http1).await.unwrap();
            let expected = if kind == own { 200 } else { 401 };
            assert_eq!(connection.reset(None).await, Ok(expected), "{own} {name} as {kind}");
        }
    }
}

#[tokio::test]
async fn revoked_certificates_are_rejected_once_the_list_is_loaded() {
    let files = Files::new();
    let list = files.path().join("revoked.pem");
    let (good, stolen) =
        (files.authority.client(&[], Validity::Now), files.authority.client(&[], Validity::Now));
    fs::write(&list, files.authority.revoke(&[])).unwrap();
    let tls = "client_ca: {}/authority.pem, client_crl: {}/revoked.pem";
    let service = files.service_with(tls, "").await;
    let tls = service.tls.clone().unwrap();
    assert!(tls.files().paths().any(|file| file == list), "the list is watched");
    let [good, thief] = [&good, &stolen].map(|own| files.caller().showing(own.clone()));
    is_served(&service, &thief).await;
    fs::write(&list, files.authority.revoke(&[&stolen])).unwrap();
    tls.reload().unwrap();
    for wire in WIRES {
        assert!(thief.check(&service, wire).await.is_err(), "{wire:?}");
    }
    is_served(&service, &good).await;
    for (text, reason) in [
        ("", "no certificate revocation list found"),
        ("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "could not be parsed"),
    ] {
        fs::write(&list, text).unwrap();
        let error = tls.reload().unwrap_err().to_string();
        assert!(error.starts_with("server.tls.client_crl: ") && error.contains(reason), "{error}");
        assert!(thief.check(&service, Wire::Http1).await.is_err(), "the previous list stays in force");
    }
    // A list of another authority does not cover this one's certificates, so all are rejected.
    fs::write(&list, Authority::new().revoke(&[])).unwrap();
    tls.reload().unwrap();
    assert!(good.check(&service, Wire::Http1).await.is_err());
}

#[tokio::test]
async fn change_that_a_browser_can_forge_is_rejected() {
    let files = Files::new();
    let tls = "client_ca: {}/authority.pem, identities: {\"dns:ops.example.org\": admin}";
    let service = files.service_with(tls, "").await;
    let (json, form) = (Some("application/json"), Some("application/x-www-form-urlencoded"));
    for wire in [Wire::Http1, Wire::Http2] {
        let mut admin = files.named(&["ops.example.org"]).open(&service, wire).await.unwrap();
        for (method, content_type, key, expected) in [
            ("POST", None, None, 415),
            ("POST", form, None, 415),
            ("POST", Some("multipart/form-data; boundary=x"), None, 415),
            ("POST", Some("text/plain"), None, 415),
            ("POST", json, None, 200),
            ("POST", Some("application/json; charset=utf-8"), None, 200),
            // A browser cannot send the key.
            ("POST", form, Some("secret"), 200),
            ("POST", None, Some("secret"), 200),
        ] {
            let path = "/admin/reset/u";
            let (status, body) = admin.request_as(content_type, method, path, key, "").await.unwrap();
            assert_eq!(status, expected, "{wire:?} {method} {content_type:?} {key:?}: {body}");
        }
        // Browsers send a preflight for other methods; a form is rejected there too.
        for (content_type, expected) in [(None, 404), (json, 404), (form, 415)] {
            let path = "/api/v1/rules/00000000-0000-7000-8000-000000000000";
            let (status, body) = admin.request_as(content_type, "DELETE", path, None, "").await.unwrap();
            assert_eq!(status, expected, "{wire:?} DELETE {content_type:?}: {body}");
        }
        let preflight = admin.request_as(None, "OPTIONS", "/api/v1/rules", None, "").await.unwrap();
        assert_eq!(preflight.0, 405, "preflights are never allowed");
        let mut unknown = files.named(&["unknown.example.org"]).open(&service, wire).await.unwrap();
        let (status, _) = unknown.request_as(None, "POST", "/admin/reset/u", None, "").await.unwrap();
        assert_eq!(status, 401);
    }
}

#[tokio::test]
async fn key_takes_precedence_over_a_certificate() {
    let files = Files::new();
    let tls = "client_ca: {}/authority.pem, identities: {\"email:ops@example.org\": admin}";
    let service = files.service_with(tls, "require_key: true").await;
    let checker = service.catalog.create_key(&Actor::default(), "checker", "c", None).await.unwrap().1;
    for wire in WIRES {
        let mut admin = files.named(&["ops@example.org"]).open(&service, wire).await.unwrap();
        assert_eq!(admin.reset(None).await, Ok(200), "{wire:?}");
        assert_eq!(admin.check(Some(&checker)).await, Ok(200), "{wire:?}");
        assert_eq!(admin.reset(Some(&checker)).await, Ok(403), "{wire:?}");
        assert_eq!(admin.reset(Some("wrong")).await, Ok(401), "{wire:?}");
        let mut unknown = files.named(&["unknown.example.org"]).open(&service, wire).await.unwrap();
        assert_eq!(unknown.reset(Some("secret")).await, Ok(200), "{wire:?}");
    }
}

#[tokio::test]
async fn audit_trail_names_the_certificate() {
    let files = Files::new();
    let tls = "client_ca: {}/authority.pem, identities: {\"uri:spiffe://example.org/ops\": admin, \"uri:spiffe://example.org/orders\": checker}";
    let service = files.service_with(tls, "").await;
    let plan = r#"{"limits":[{"algorithm":"fixed_window","limit":5,"window_seconds":60}]}"#;
    for (wire, name) in [(Wire::Http1, "silver"), (Wire::Http2, "gold")] {
        let path = format!("/api/v1/plans/{name}");
        let mut orders = files.named(&["spiffe://example.org/orders"]).open(&service, wire).await.unwrap();
        assert_eq!(orders.request("PUT", &path, None, plan).await.unwrap().0, 403);
        let mut ops = files.named(&["spiffe://example.org/ops"]).open(&service, wire).await.unwrap();
        assert_eq!(ops.request("PUT", &path, None, plan).await.unwrap().0, 201);
    }
    let records = service.catalog.audit_page(AuditFilter::default(), None, 10).await.unwrap();
    assert_eq!(records.len(), 2, "rejected callers changed nothing");
    assert!(records.iter().all(|record| record.actor.key_id == "certificate:uri:spiffe://example.org/ops"));
}

#[tokio::test]
async fn reloaded_certificate_applies_to_new_connections() {
    let files = Files::new();
    let service = files.mutual().await;
    let tls = service.tls.clone().unwrap();
    let caller = files.named(&["orders.example.org"]);
    let mut before = Vec::new();
    for wire in WIRES {
        before.push((wire, caller.open(&service, wire).await.unwrap()));
    }
    let first = before[0].1.shown.clone();

    let replacement = files.authority.server(&NAMES, Validity::Now);
    replacement.save(files.path(), "server");
    tls.reload().unwrap();
    for (wire, old) in &mut before {
        assert_eq!(old.check(None).await, Ok(200), "{wire:?}: existing connections keep their certificate");
        let mut new = caller.open(&service, *wire).await.unwrap();
        assert_ne!(new.shown, first, "{wire:?}");
        assert_eq!(new.check(None).await, Ok(200), "{wire:?}");
    }
    let second = caller.open(&service, Wire::Http2).await.unwrap().shown;

    // Invalid files are reported and change nothing.
    let other = files.authority.server(&NAMES, Validity::Now);
    let (file, good) = (|name: &str| files.path().join(name), &replacement);
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let bad: [(&str, Option<&str>, &str, &str); 7] = [
        ("server.pem", Some("garbage"), "server.tls.cert", "no certificate found"),
        ("server.pem", Some(garbage), "server.tls.cert", "certificate"),
        ("server.pem", None, "server.tls.cert", "No such file"),
        ("server.key", Some(&other.key), "server.tls.key", "not the private key of the certificate in"),
        ("server.key", Some("garbage"), "server.tls.key", ""),
        ("server.key", None, "server.tls.key", "No such file"),
        ("authority.pem", Some("garbage"), "server.tls.client_ca", "no certificate found"),
    ];
    for (name, text, field, expected) in bad {
        let kept = fs::read(file(name)).unwrap();
        match text {
            Some(text) => fs::write(file(name), text).unwrap(),
            None => fs::remove_file(file(name)).unwrap(),
        }
        let error = tls.reload().unwrap_err().to_string();
        let named = format!("{field}: {}: ", file(name).display());
        assert!(error.starts_with(&named) && error.contains(expected), "{error}");
        assert!(!error.contains(good.key.lines().nth(1).unwrap()), "errors contain no private key");
        fs::write(file(name), kept).unwrap();
        for wire in WIRES {
            let mut new = caller.open(&service, wire).await.unwrap();
            assert_eq!((new.check(None).await, &new.shown), (Ok(200), &second), "{name} {wire:?}");
        }
    }
    for (wire, old) in &mut before {
        assert_eq!(old.check(None).await, Ok(200), "{wire:?}");
    }
}

#[tokio::test]
async fn client_authority_can_be_reloaded() {
    let files = Files::new();
    let service = files.mutual().await;
    let caller = files.named(&["orders.example.org"]);
    let mut before = caller.open(&service, Wire::Http2).await.unwrap();
    let other = Authority::new();
    fs::write(files.path().join("authority.pem"), other.certificate()).unwrap();
    service.tls.as_ref().unwrap().reload().unwrap();
    let welcome: Signed = other.client(&["orders.example.org"], Validity::Now);
    is_served(&service, &files.caller().showing(welcome)).await;
    for wire in WIRES {
        assert!(caller.check(&service, wire).await.is_err(), "{wire:?}");
    }
    // Existing connections are closed as well.
    soon(async {
        while before.check(None).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn expired_certificate_is_rejected() {
    let files = Files::new();
    let tls = "client_ca: {}/authority.pem, identities: {\"dns:orders.example.org\": checker}";
    let service = files.service_with(tls, "require_key: true").await;
    let caller = files.named(&["orders.example.org"]);
    let mut before = Vec::new();
    for wire in WIRES {
        let mut connection = caller.open(&service, wire).await.unwrap();
        assert_eq!(connection.check(None).await, Ok(200), "{wire:?}");
        before.push((wire, connection));
    }
    let mut stream = caller.open(&service, Wire::Grpc).await.unwrap().check_stream().await;
    // After a reload with the same authority, all connections continue.
    service.tls.as_ref().unwrap().reload().unwrap();
    for (wire, connection) in &mut before {
        assert_eq!(connection.check(None).await, Ok(200), "{wire:?}");
    }
    fs::write(files.path().join("authority.pem"), Authority::new().certificate()).unwrap();
    service.tls.as_ref().unwrap().reload().unwrap();
    for (wire, connection) in &mut before {
        // The request is rejected immediately, or the connection is already closed.
        assert_ne!(connection.check(None).await, Ok(200), "{wire:?}");
    }
    let end = soon(stream.message()).await.unwrap_err();
    assert_eq!(end.code(), tonic::Code::Unauthenticated, "{end}");
}
