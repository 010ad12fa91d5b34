//! TLS of the commands: certificates from files, which are replaced while they run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod process;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pacegate_testkit::server::{Authority, Validity};
use process::{address, file, pacegate, run, signal, started};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

/// A running service with its own certificates.
struct Service {
    process: Child,
    http: String,
    grpc: String,
    authority: Authority,
    directory: TempDir,
}

impl Service {
    fn start() -> Self {
        Self::run(&["serve"])
    }

    /// A proxy in front of `upstream`.
    fn proxy(upstream: &str) -> Self {
        Self::run(&["proxy", "--upstream", upstream])
    }

    fn run(command: &[&str]) -> Self {
        let (authority, directory) = (Authority::new(), tempfile::tempdir().unwrap());
        let path = directory.path();
        authority.server(&["localhost"], Validity::Now).save(path, "server");
        let config = file(path, &config(path));
        let log = fs::File::create(path.join("log")).unwrap();
        let (process, _output, line) = started(
            pacegate().args(command).args(["--http", "127.0.0.1:0", "--config", &config]).stderr(log),
        );
        // A proxy has no gRPC address.
        let grpc = if line.contains("(gRPC)") { address(&line, "gRPC") } else { String::new() };
        let (_, http) = line.split_once(" listening on https://").unwrap();
        let http = http.split([',', ' ']).next().unwrap().to_owned();
        Self { process, http, grpc, authority, directory }
    }

    /// Replaces the certificate and its key.
    fn replace(&self) {
        self.authority.server(&["localhost"], Validity::Now).save(self.directory.path(), "server");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Opens an HTTP/2 connection. Returns it with the certificate of the server.
    async fn open(&self, address: &str) -> (http2::SendRequest<Full<Bytes>>, Vec<u8>) {
        let mut authorities = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(self.authority.certificate().as_bytes()).unwrap();
        authorities.add(authority).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.unwrap().with_root_certificates(authorities).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        (sender, shown)
    }

    /// The certificates that both listeners present to new connections.
    async fn shown(&self) -> [Vec<u8>; 2] {
        [self.open(&self.http).await.1, self.open(&self.grpc).await.1]
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn config(path: &Path) -> String {
    let path = path.display();
    format!("server: {{tls: {{cert: {path}/server.pem, key: {path}/server.key}}}}\n")
}

async fn is_served(sender: &mut http2::SendRequest<Full<Bytes>>) -> bool {
    let request = Request::get("https://localhost/healthz").body(Full::default()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status();
    response.into_body().collect().await.unwrap();
    status == 200
}

/// Waits until `happened` holds, for at most some seconds.
async fn wait_for(what: &str, mut happened: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !happened().await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), waiting).await.unwrap_or_else(|_| panic!("timed out: {what}"));
}

#[tokio::test]
async fn certificates_are_replaced_while_the_service_runs() {
    let service = Service::start();
    let (mut before, first) = service.open(&service.http).await;
    assert!(is_served(&mut before).await);
    assert_eq!(service.shown().await, [first.clone(), first.clone()]);

    service.replace();
    wait_for("the new certificate is used", async || {
        service.shown().await.iter().all(|shown| *shown != first)
    })
    .await;
    assert!(is_served(&mut before).await, "a connection goes on as it began");
    let second = service.shown().await;

    // An invalid certificate is logged and not used.
    let certificate = service.directory.path().join("server.pem");
    let valid = fs::read(&certificate).unwrap();
    fs::write(&certificate, "garbage").unwrap();
    wait_for("it is logged", async || service.log().contains("certificates not reloaded")).await;
    assert!(service.log().contains("server.tls.cert") && service.log().contains("server.pem"));
    assert_eq!(service.shown().await, second);
    fs::write(&certificate, valid).unwrap();

    // On SIGHUP, certificates are reloaded at once, even without a change.
    let reloaded = || service.log().matches("certificates reloaded").count();
    wait_for("what was good is loaded again", async || reloaded() >= 2).await;
    let count = reloaded();
    signal(&service.process, "HUP");
    wait_for("it is loaded on request", async || reloaded() > count).await;
    assert_eq!(service.shown().await, second);
    assert!(is_served(&mut before).await, "a connection goes on as it began");
}

#[tokio::test]
async fn proxy_uses_tls_and_reloads_its_certificate() {
    let upstream = process::Service::start(&[], &[]);
    let sidecar = Service::proxy(&upstream.url);
    let (mut before, first) = sidecar.open(&sidecar.http).await;
    assert!(is_served(&mut before).await);
    sidecar.replace();
    wait_for("the new certificate is used", async || sidecar.open(&sidecar.http).await.1 != first).await;
    assert!(is_served(&mut before).await, "a connection goes on as it began");
    let (mut after, _) = sidecar.open(&sidecar.http).await;
    assert!(is_served(&mut after).await);
}

#[test]
fn service_does_not_start_with_unusable_certificates() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (authority, names) = (Authority::new(), ["localhost"]);
    let (certificate, key) = authority.server(&names, Validity::Now).save(path, "server");
    let (_, other) = authority.server(&names, Validity::Now).save(path, "other");
    let config = file(path, &config(path));
    let assert_rejected = |field: &str, file: &PathBuf, reason: &str| {
        let (code, output, errors) = run(&["serve", "--http", "127.0.0.1:0", "--config", &config]);
        assert_eq!((code, output.as_str()), (2, ""), "{errors}");
        assert_eq!(errors.trim().lines().count(), 1, "{errors}");
        let expected = format!("error: server.tls.{field}: {}: ", file.display());
        assert!(errors.starts_with(&expected) && errors.contains(reason), "{errors}");
    };
    fs::copy(other, &key).unwrap();
    assert_rejected("key", &key, "not the private key of the certificate in");
    fs::write(&key, "garbage").unwrap();
    assert_rejected("key", &key, "");
    fs::write(&certificate, "garbage").unwrap();
    assert_rejected("cert", &certificate, "no certificate found");
    fs::remove_file(&certificate).unwrap();
    assert_rejected("cert", &certificate, "No such file");
}
