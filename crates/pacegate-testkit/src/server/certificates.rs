//! Certificates for servers and clients, signed by an authority that is created for one test.

use std::fs;
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType,
    date_time_ymd,
};
use tempfile::TempDir;

/// PEM files that exist as long as this value, a clone of it or the server that uses them.
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
        let path = directory.path();
        let authority = Authority::new();
        let server = authority.server(&["localhost", "127.0.0.1"], Validity::Now).save(path, "server");
        let client = authority.client(&[], Validity::Now).save(path, "client");
        Self {
            authority: write(path, "authority.pem", &authority.certificate()),
            server_certificate: server.0,
            server_key: server.1,
            client_certificate: client.0,
            client_key: client.1,
            _directory: Arc::new(directory),
        }
    }
}

/// A certificate authority for a test.
///
/// ```
/// use pacegate_testkit::server::{Authority, Validity};
///
/// let authority = Authority::new();
/// let client = authority.client(&["spiffe://example.org/orders"], Validity::Now);
/// assert!(client.certificate.starts_with("-----BEGIN CERTIFICATE-----"));
/// ```
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// The validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// Valid now.
    Now,
    /// Expired.
    Expired,
    /// Not yet valid.
    NotYetValid,
}

/// A certificate and its private key, as PEM.
#[derive(Clone, Debug)]
pub struct Signed {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// The serial number.
    pub serial: u64,
}

/// The serial number of the next certificate; zero is not valid.
static SERIAL: AtomicU64 = AtomicU64::new(1);

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// A new authority.
    pub fn new() -> Self {
        let mut parameters = named("authority", &[]);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(parameters, key()).expect("a certificate that signs itself"))
    }

    /// The certificate of the authority, as PEM.
    pub fn certificate(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a server with these names. Each is an address, an e-mail address, a URI or
    /// else a host name.
    pub fn server(&self, names: &[&str], validity: Validity) -> Signed {
        self.sign("server", names, validity, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for a client with these names.
    pub fn client(&self, names: &[&str], validity: Validity) -> Signed {
        self.sign("client", names, validity, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A revocation list with these certificates, as PEM.
    pub fn revoke(&self, revoked: &[&Signed]) -> String {
        let years = Validity::Now.years();
        let revoked_certs = revoked.iter().map(|signed| RevokedCertParams {
            serial_number: signed.serial.into(),
            revocation_time: date_time_ymd(years.start, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(years.start, 1, 1),
            next_update: date_time_ymd(years.end, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.0).expect("a signed list");
        list.pem().expect("a list as PEM")
    }

    fn sign(&self, kind: &str, names: &[&str], validity: Validity, usage: ExtendedKeyUsagePurpose) -> Signed {
        let key = key();
        let mut parameters = named(kind, names);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        parameters.serial_number = Some(serial.into());
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![usage];
        parameters.use_authority_key_identifier_extension = true;
        let years = validity.years();
        parameters.not_before = date_time_ymd(years.start, 1, 1);
        parameters.not_after = date_time_ymd(years.end, 1, 1);
        let certificate = parameters.signed_by(&key, &self.0).expect("a signed certificate");
        Signed { certificate: certificate.pem(), key: key.serialize_pem(), serial }
    }
}

impl Validity {
    fn years(self) -> Range<i32> {
        match self {
            Self::Now => 2000..3000,
            Self::Expired => 2000..2001,
            Self::NotYetValid => 2999..3000,
        }
    }
}

impl Signed {
    /// Writes `name.pem` and `name.key` and returns their paths.
    pub fn save(&self, directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let certificate = write(directory, &format!("{name}.pem"), &self.certificate);
        (certificate, write(directory, &format!("{name}.key"), &self.key))
    }
}

fn named(kind: &str, names: &[&str]) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, format!("Pacegate test {kind}"));
    let text = |name: &str| name.try_into().expect("a name of ASCII characters");
    let kind = |name: &&str| match name.parse::<IpAddr>() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) if name.contains("://") => SanType::URI(text(name)),
        Err(_) if name.contains('@') => SanType::Rfc822Name(text(name)),
        Err(_) => SanType::DnsName(text(name)),
    };
    parameters.subject_alt_names = names.iter().map(kind).collect();
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
