//! TLS: the server's certificate, which can be replaced at run time, and the names in client
//! certificates.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;
use x509_parser::extensions::GeneralName;
use x509_parser::time::ASN1Time;

use crate::{CertificateName, TlsFiles};

/// Time between two validations of a connected client's certificate.
pub const CERTIFICATE_CHECK_EVERY: Duration = Duration::from_secs(2);

/// The TLS configuration. New connections use what was loaded last; existing connections keep the
/// server certificate they started with, as long as the client's own certificate is valid.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    loaded: ArcSwap<Loaded>,
}

/// The loaded files, for each kind of listener.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) http: Arc<ServerConfig>,
    pub(super) http2: Arc<ServerConfig>,
    /// Verifies client certificates, if they are required.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

/// The certificate that a client presented. It may expire, or its authority may be replaced, during
/// the connection.
#[derive(Debug)]
pub struct ClientCertificate {
    tls: Arc<Tls>,
    /// The certificate, followed by its intermediates.
    chain: Vec<CertificateDer<'static>>,
    /// The earliest expiry in the chain, in seconds since the epoch.
    expires_at: i64,
    /// The configuration with which it was last found valid; `None` once it was invalid.
    valid_with: Mutex<Option<Arc<Loaded>>>,
}

impl ClientCertificate {
    /// The certificate of a connection that was accepted under `loaded`.
    pub(super) fn new(tls: Arc<Tls>, loaded: Arc<Loaded>, chain: &[CertificateDer<'_>]) -> Self {
        let expiry = |certificate: &CertificateDer<'_>| {
            let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
            Some(certificate.validity().not_after.timestamp())
        };
        Self {
            expires_at: chain.iter().filter_map(expiry).min().unwrap_or(i64::MAX),
            chain: chain.iter().map(|certificate| certificate.clone().into_owned()).collect(),
            valid_with: Mutex::new(Some(loaded)),
            tls,
        }
    }

    /// Returns its subject alternative names.
    pub fn names(&self) -> Vec<CertificateName> {
        self.chain.first().map(names).unwrap_or_default()
    }

    /// Returns whether a client could still connect with it. It is verified again after the files
    /// were reloaded.
    pub fn is_valid(&self) -> bool {
        let mut valid_with = self.valid_with.lock();
        let Some(known) = &*valid_with else { return false };
        let loaded = self.tls.loaded.load();
        let is_valid =
            self.expires_at > unix_seconds() && (Arc::ptr_eq(known, &loaded) || self.is_accepted_by(&loaded));
        *valid_with = is_valid.then(|| Arc::clone(&loaded));
        is_valid
    }

    /// Completes when it is no longer valid; checked every few seconds.
    pub(super) async fn until_invalid(self: Arc<Self>) {
        while self.is_valid() {
            tokio::time::sleep(CERTIFICATE_CHECK_EVERY).await;
        }
    }

    fn is_accepted_by(&self, loaded: &Loaded) -> bool {
        let Some(verifier) = &loaded.verifier else { return true };
        let Some((own, between)) = self.chain.split_first() else { return false };
        verifier.verify_client_cert(own, between, UnixTime::now()).is_ok()
    }
}

fn unix_seconds() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

/// Why these TLS files cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or its content is invalid.
    #[error("server.tls.{field}: {file}: {reason}")]
    File {
        /// The field of the configuration that names the file.
        field: &'static str,
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// The TLS library does not support the required settings.
    #[error("server.tls: {0}")]
    Unsupported(String),
}

impl Tls {
    /// Loads the files.
    ///
    /// # Errors
    /// [`TlsError`] when one of them cannot be used.
    pub fn load(files: &TlsFiles) -> Result<Arc<Self>, TlsError> {
        let loaded = ArcSwap::from_pointee(Loaded::load(files)?);
        Ok(Arc::new(Self { files: files.clone(), loaded }))
    }

    /// Reloads the files, for new connections.
    ///
    /// # Errors
    /// [`TlsError`] when one of them cannot be used; the previous files stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.loaded.store(Arc::new(Loaded::load(&self.files)?));
        Ok(())
    }

    /// Returns the files.
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// Returns the configuration that was loaded last.
    pub(super) fn loaded(&self) -> Arc<Loaded> {
        self.loaded.load_full()
    }
}

impl Loaded {
    fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        let certificates = certificates("cert", &files.cert)?;
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|error| unusable("key", &files.key, error.to_string()))?;
        let provider = CryptoProvider::get_default()
            .cloned()
            .unwrap_or_else(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Unsupported(error.to_string()))?;
        let verifier = match &files.client_ca {
            None => None,
            Some(file) => {
                let mut authorities = RootCertStore::empty();
                for certificate in self::certificates("client_ca", file)? {
                    authorities
                        .add(certificate)
                        .map_err(|error| unusable("client_ca", file, error.to_string()))?;
                }
                let mut verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider);
                if let Some(file) = &files.client_crl {
                    verifier = verifier.with_crls(revocation_lists(file)?);
                }
                let verifier = verifier.build().map_err(|error| match (&error, &files.client_crl) {
                    (VerifierBuilderError::InvalidCrl(_), Some(file)) => {
                        unusable("client_crl", file, error.to_string())
                    }
                    _ => unusable("client_ca", file, error.to_string()),
                })?;
                Some(verifier)
            }
        };
        let builder = match verifier.clone() {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier),
        };
        let mut http = builder.with_single_cert(certificates, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let reason = format!("not the private key of the certificate in {}", files.cert.display());
                unusable("key", &files.key, reason)
            }
            rustls::Error::InvalidCertificate(_) => unusable("cert", &files.cert, error.to_string()),
            error => unusable("key", &files.key, error.to_string()),
        })?;
        if files.client_ca.is_some() {
            // A resumed session would not verify the certificate again, which may have expired.
            http.session_storage = Arc::new(NoServerSessionStorage {});
            http.send_tls13_tickets = 0;
        }
        let mut http2 = http.clone();
        http.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        http2.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { http: Arc::new(http), http2: Arc::new(http2), verifier })
    }
}

fn certificates(field: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(unusable(field, file, "no certificate found".into()))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unusable(field, file, error.to_string())),
    }
}

/// Reads the revocation lists in a file. An outdated list is still used and logged: rejecting it
/// would lock out all clients.
fn revocation_lists(file: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let lists = CertificateRevocationListDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable("client_crl", file, error.to_string()))?;
    if lists.is_empty() {
        return Err(unusable("client_crl", file, "no certificate revocation list found".into()));
    }
    for list in &lists {
        let next = x509_parser::parse_x509_crl(list).ok().and_then(|(_, list)| list.next_update());
        if let Some(next) = next.filter(|next| *next < ASN1Time::now()) {
            tracing::warn!(file = %file.display(), next_update = %next, "certificate revocation list is out of date");
        }
    }
    Ok(lists)
}

fn unusable(field: &'static str, file: &Path, reason: String) -> TlsError {
    TlsError::File { field, file: file.display().to_string(), reason }
}

/// Returns the subject alternative names of a certificate.
fn names(certificate: &CertificateDer<'_>) -> Vec<CertificateName> {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else { return Vec::new() };
    let Ok(Some(alternative)) = certificate.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(CertificateName::dns(name)),
        GeneralName::URI(uri) => Some(CertificateName::Uri((*uri).into())),
        GeneralName::RFC822Name(address) => Some(CertificateName::Email((*address).into())),
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => Some(CertificateName::ip(IpAddr::from([a, b, c, d]))),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| CertificateName::ip(IpAddr::from(bytes))),
        },
        _ => None,
    };
    alternative.value.general_names.iter().filter_map(name).collect()
}
