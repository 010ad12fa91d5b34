//! The key of the audit trail, and where it is stored.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use pacegate_config::AUDIT_KEY_LENGTH_MIN;

use crate::digest::{Fields, random_hexadecimal};
use crate::error::CatalogError;

/// The audit key. Its id is public; the secret is never printed.
#[derive(Clone)]
pub(crate) struct AuditKey {
    secret: Arc<[u8]>,
    pub(crate) id: Arc<str>,
}

impl AuditKey {
    pub(crate) fn new(secret: &str) -> Result<Self, CatalogError> {
        if secret.len() < AUDIT_KEY_LENGTH_MIN {
            let message = format!("the audit key must be at least {AUDIT_KEY_LENGTH_MIN} bytes long");
            return Err(CatalogError::permanent(message));
        }
        let mut id = Fields::keyed(secret.as_bytes()).text("audit key id").hexadecimal();
        id.truncate(16);
        Ok(Self { secret: secret.as_bytes().into(), id: id.into() })
    }

    /// A keyed hash for one purpose. Hashes for different purposes never collide.
    pub(crate) fn fields(&self, purpose: &str) -> Fields<crate::digest::Keyed> {
        Fields::keyed(&self.secret).text(purpose)
    }
}

impl fmt::Debug for AuditKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AuditKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The source of the key.
#[derive(Debug)]
pub(crate) enum AuditKeySource {
    Known(AuditKey),
    /// A file next to the database, created by the first change.
    File {
        path: PathBuf,
        loaded: OnceLock<AuditKey>,
    },
}

impl AuditKeySource {
    /// The key file of a SQLite database.
    pub(crate) fn beside(database: &Path) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push(".audit-key");
        Self::File { path: path.into(), loaded: OnceLock::new() }
    }

    /// Whether the key is created by the first change, so that it cannot be older than the trail.
    pub(crate) fn is_created_by_changes(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// The key, if it exists.
    pub(crate) fn get(&self) -> Result<Option<AuditKey>, CatalogError> {
        let (path, loaded) = match self {
            Self::Known(key) => return Ok(Some(key.clone())),
            Self::File { path, loaded } => (path, loaded),
        };
        if let Some(key) = loaded.get() {
            return Ok(Some(key.clone()));
        }
        match fs::read_to_string(path) {
            Ok(secret) => {
                let key = AuditKey::new(secret.trim())
                    .map_err(|error| CatalogError::permanent(format!("{}: {error}", path.display())))?;
                Ok(Some(loaded.get_or_init(|| key).clone()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(path, &error)),
        }
    }

    /// The key, created if it does not exist.
    pub(crate) fn get_or_create(&self) -> Result<AuditKey, CatalogError> {
        if let Some(key) = self.get()? {
            return Ok(key);
        }
        if let Self::File { path, .. } = self {
            create(path)?;
        }
        self.get()?
            .ok_or_else(|| CatalogError::unavailable("the audit key file was removed while it was created"))
    }
}

/// Creates the file atomically: another process sees either no file or a complete one.
fn create(path: &Path) -> Result<(), CatalogError> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", random_hexadecimal::<8>()?));
    let draft = PathBuf::from(draft);
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft);
    let secret = random_hexadecimal::<32>()?;
    let linked = written
        .and_then(|mut file| file.write_all(format!("{secret}\n").as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::hard_link(&draft, path));
    let _ = fs::remove_file(&draft);
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(unusable(path, &error)),
        _ => Ok(()),
    }
}

fn unusable(path: &Path, error: &std::io::Error) -> CatalogError {
    CatalogError::unavailable(format!("audit key file {} cannot be used: {error}", path.display()))
}
