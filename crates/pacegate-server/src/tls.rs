//! Encrypted connections: the service's certificate, which can be replaced while it runs, and whom clients' certificates name.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pacegate::{Role, TlsConfig};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;
use x509_parser::extensions::GeneralName;

use crate::peer::Identity;

/// What encrypted connections need. New connections use what was loaded last; those that there are go on as they began.
#[derive(Debug)]
pub struct Tls {
    config: TlsConfig,
    loaded: ArcSwap<Loaded>,
}

/// What was made of the files, for each kind of listener.
#[derive(Debug)]
struct Loaded {
    http: Arc<ServerConfig>,
    grpc: Arc<ServerConfig>,
}

/// Why connections cannot be encrypted with these files.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or what is in it is not what should be.
    #[error("server.tls.{field}: {file}: {reason}")]
    File {
        /// The field of the configuration that names the file.
        field: &'static str,
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What encrypts cannot do what connections need.
    #[error("server.tls: {0}")]
    Unsupported(String),
}

impl Tls {
    /// Loads the files that `config` names.
    ///
    /// # Errors
    /// [`TlsError`] when one of them cannot be used.
    pub fn load(config: &TlsConfig) -> Result<Arc<Self>, TlsError> {
        let loaded = ArcSwap::from_pointee(Loaded::load(config)?);
        Ok(Arc::new(Self { config: config.clone(), loaded }))
    }

    /// Loads the files again, for the connections to come.
    ///
    /// # Errors
    /// [`TlsError`] when one of them cannot be used; then everything stays as it was.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.loaded.store(Arc::new(Loaded::load(&self.config)?));
        Ok(())
    }

    /// The files it is made of.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let TlsConfig { cert, key, client_ca, .. } = &self.config;
        [cert, key].into_iter().chain(client_ca).map(AsRef::as_ref)
    }

    pub(crate) fn http(&self) -> Arc<ServerConfig> {
        self.loaded.load().http.clone()
    }

    pub(crate) fn grpc(&self) -> Arc<ServerConfig> {
        self.loaded.load().grpc.clone()
    }

    /// Whom a certificate names: the first name with a role, or else the first name.
    pub(crate) fn identify(&self, certificate: &CertificateDer<'_>) -> Option<Identity> {
        let names = names(certificate);
        let known = |name: &&String| self.role_of(name).is_some();
        let name = names.iter().find(known).or(names.first())?;
        Some(Identity { role: self.role_of(name), name: name.as_str().into() })
    }

    fn role_of(&self, name: &str) -> Option<Role> {
        self.config.identities.iter().find(|(own, _)| own == name).map(|(_, role)| *role)
    }
}

impl Loaded {
    fn load(config: &TlsConfig) -> Result<Self, TlsError> {
        let certificates = certificates("cert", &config.cert)?;
        let key = PrivateKeyDer::from_pem_file(&config.key)
            .map_err(|error| unusable("key", &config.key, error.to_string()))?;
        let provider = CryptoProvider::get_default()
            .cloned()
            .unwrap_or_else(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Unsupported(error.to_string()))?;
        let builder = match &config.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut authorities = RootCertStore::empty();
                for certificate in self::certificates("client_ca", file)? {
                    authorities
                        .add(certificate)
                        .map_err(|error| unusable("client_ca", file, error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider)
                    .build()
                    .map_err(|error| unusable("client_ca", file, error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut http = builder.with_single_cert(certificates, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let reason = format!("is not the key of the certificate in {}", config.cert.display());
                unusable("key", &config.key, reason)
            }
            rustls::Error::InvalidCertificate(_) => unusable("cert", &config.cert, error.to_string()),
            error => unusable("key", &config.key, error.to_string()),
        })?;
        if config.client_ca.is_some() {
            // A session that is taken up again would not look at the certificate again, which may have expired.
            http.session_storage = Arc::new(NoServerSessionStorage {});
            http.send_tls13_tickets = 0;
        }
        let mut grpc = http.clone();
        http.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        grpc.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { http: Arc::new(http), grpc: Arc::new(grpc) })
    }
}

fn certificates(field: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(unusable(field, file, "has no certificate".into()))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unusable(field, file, error.to_string())),
    }
}

fn unusable(field: &'static str, file: &Path, reason: String) -> TlsError {
    TlsError::File { field, file: file.display().to_string(), reason }
}

/// The names of whom a certificate was given to, as they are written in a configuration.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else { return Vec::new() };
    let Ok(Some(alternative)) = certificate.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::URI(text) | GeneralName::DNSName(text) | GeneralName::RFC822Name(text) => {
            Some((*text).to_owned())
        }
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => Some(IpAddr::from([a, b, c, d]).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
        },
        _ => None,
    };
    alternative.value.general_names.iter().filter_map(name).collect()
}
