//! Certificates for a server and a client, signed by an authority made for one test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;

/// PEM files that exist as long as this value, a clone of it or the server they were made for.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The certificate of the authority that signed both others.
    pub authority: PathBuf,
    /// The server's certificate, valid for `localhost` and 127.0.0.1.
    pub server_certificate: PathBuf,
    /// The server's private key.
    pub server_key: PathBuf,
    /// A certificate that the server accepts from clients.
    pub client_certificate: PathBuf,
    /// The client's private key.
    pub client_key: PathBuf,
    _directory: Arc<TempDir>,
}

impl Certificates {
    pub(super) fn generate() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let authority = authority();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let server = signed(&authority, "server", names, ExtendedKeyUsagePurpose::ServerAuth);
        let client = signed(&authority, "client", Vec::new(), ExtendedKeyUsagePurpose::ClientAuth);
        let path = directory.path();
        Self {
            authority: write(path, "authority.pem", &authority.pem()),
            server_certificate: write(path, "server.pem", &server.0),
            server_key: write(path, "server.key", &server.1),
            client_certificate: write(path, "client.pem", &client.0),
            client_key: write(path, "client.key", &client.1),
            _directory: Arc::new(directory),
        }
    }
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut parameters = named("authority", Vec::new());
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(parameters, key()).expect("a certificate that signs itself")
}

/// A certificate and its key.
fn signed(
    authority: &Authority,
    name: &str,
    hosts: Vec<String>,
    usage: ExtendedKeyUsagePurpose,
) -> (String, String) {
    let key = key();
    let mut parameters = named(name, hosts);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![usage];
    parameters.use_authority_key_identifier_extension = true;
    let certificate = parameters.signed_by(&key, authority).expect("a signed certificate");
    (certificate.pem(), key.serialize_pem())
}

fn named(name: &str, hosts: Vec<String>) -> CertificateParams {
    let mut parameters = CertificateParams::new(hosts).expect("valid host names");
    parameters.distinguished_name.push(DnType::CommonName, format!("Tollgate test {name}"));
    parameters
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a new key")
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).expect("a file in a temporary directory");
    path
}
