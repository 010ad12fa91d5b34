//! Seals: keyed hashes of every row that a change wrote. They reveal edits of the tables.

use sqlx::AnyConnection;
use sqlx::any::AnyRow;

use crate::audit_key::AuditKey;
use crate::database::Kind;
use crate::error::CatalogError;
use crate::statement::{Statement, column};

/// Number of rows that are read or sealed at a time.
pub(crate) const PAGE: i64 = 500;

/// The tables whose rows are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sealed {
    Rules,
    Plans,
    Users,
    Keys,
    Overrides,
}

/// Number of rows in each table. Overrides expire and are not counted.
pub(crate) type Counts = [i64; 4];

/// How to read the version of a row.
enum Version {
    Column(usize),
    /// 1, or 2 if the column has a value.
    Filled(usize),
    None,
}

/// A sealed table: its unique column, the sealed columns (`#` marks numbers), and which of them
/// names the row.
struct Table {
    kind: &'static str,
    name: &'static str,
    key: &'static str,
    columns: &'static [&'static str],
    subject: usize,
    version: Version,
}

const TABLES: [Table; 5] = [
    Table {
        kind: "rule",
        name: "pacegate_rules",
        key: "rule_id",
        columns: &[
            "rule_id",
            "#number",
            "variant_key",
            "definition_json",
            "#version",
            "#created_at",
            "#updated_at",
        ],
        subject: 0,
        version: Version::Column(4),
    },
    Table {
        kind: "plan",
        name: "pacegate_plans",
        key: "name_key",
        columns: &["name_key", "name", "limits_json", "#version", "#updated_at"],
        subject: 1,
        version: Version::Column(3),
    },
    Table {
        kind: "user",
        name: "pacegate_users",
        key: "user_key",
        columns: &["user_key", "user_id", "tier", "custom_limits_json", "#version", "#updated_at"],
        subject: 1,
        version: Version::Column(4),
    },
    Table {
        kind: "key",
        name: "pacegate_api_keys",
        key: "key_id",
        // `last_used_at` is not sealed, because it is updated without a change.
        columns: &["key_id", "name", "role", "hash", "#created_at", "#expires_at", "#revoked_at"],
        subject: 0,
        version: Version::Filled(6),
    },
    Table {
        kind: "override",
        name: "pacegate_overrides",
        key: "override_id",
        columns: &[
            "override_id",
            "#number",
            "user_key",
            "user_id",
            "rule",
            "#quota",
            "#window_micros",
            "#burst",
            "reason",
            "#expires_at",
            "#created_at",
        ],
        subject: 0,
        version: Version::None,
    },
];

/// A row of a sealed table.
pub(crate) struct SealedRow {
    /// The value in the table's unique column.
    pub(crate) key: String,
    /// The name of the row in the audit trail.
    pub(crate) subject: String,
    pub(crate) version: Option<i64>,
    /// When an override expires.
    pub(crate) expires_at: Option<i64>,
    pub(crate) seal: String,
}

impl Sealed {
    pub(crate) const ALL: [Self; 5] = [Self::Rules, Self::Plans, Self::Users, Self::Keys, Self::Overrides];

    fn table(self) -> &'static Table {
        &TABLES[self as usize]
    }

    /// The kind of the rows: the first part of their actions in the trail.
    pub(crate) fn kind(self) -> &'static str {
        self.table().kind
    }

    /// The table that actions like `rule.create` are about.
    pub(crate) fn of_action(action: &str) -> Option<Self> {
        let kind = action.split_once('.').map_or("", |(kind, _)| kind);
        Self::ALL.into_iter().find(|sealed| sealed.kind() == kind)
    }

    /// The count of this table in [`Counts`].
    pub(crate) fn count(self, counts: &mut Counts) -> Option<&mut i64> {
        counts.get_mut(self as usize)
    }

    fn select<'q>(self, database: Kind, rest: &str) -> Statement<'q> {
        let table = self.table();
        let columns: Vec<&str> = table.columns.iter().map(|column| column.trim_start_matches('#')).collect();
        Statement::new(database, &format!("SELECT {} FROM {} {rest}", columns.join(", "), table.name))
    }

    fn read(self, key: &AuditKey, row: &AnyRow) -> Result<SealedRow, CatalogError> {
        let table = self.table();
        let mut fields = key.fields("row").text(table.kind);
        for (index, name) in table.columns.iter().enumerate() {
            if name.starts_with('#') {
                let number = column::<Option<i64>>(row, index)?.map(|number| number.to_string());
                fields = fields.optional(number.as_deref());
            } else {
                fields = fields.optional(column::<Option<&str>>(row, index)?);
            }
        }
        let version = match table.version {
            Version::Column(index) => column(row, index)?,
            Version::Filled(index) => Some(1 + i64::from(column::<Option<i64>>(row, index)?.is_some())),
            Version::None => None,
        };
        let expires = table.columns.iter().position(|name| self == Self::Overrides && *name == "#expires_at");
        Ok(SealedRow {
            key: column(row, 0)?,
            subject: column(row, table.subject)?,
            version,
            expires_at: expires.map(|index| column(row, index)).transpose()?,
            seal: fields.hexadecimal(),
        })
    }

    /// One page of rows after `after`, by their unique column, each with its expected seal.
    pub(crate) async fn page(
        self,
        connection: &mut AnyConnection,
        database: Kind,
        key: &AuditKey,
        after: &str,
    ) -> Result<Vec<SealedRow>, CatalogError> {
        let column = self.table().key;
        let statement = self.select(database, &format!("WHERE {column} > ? ORDER BY {column} LIMIT ?"));
        let rows = statement.bind(after.to_owned()).bind(PAGE).bulk().rows(connection).await?;
        rows.iter().map(|row| self.read(key, row)).collect()
    }

    /// The stored seals of these rows.
    pub(crate) async fn seals(
        self,
        connection: &mut AnyConnection,
        database: Kind,
        rows: &[SealedRow],
    ) -> Result<Vec<(String, String)>, CatalogError> {
        let placeholders = vec!["?"; rows.len()].join(", ");
        let sql = format!(
            "SELECT subject_key, seal FROM pacegate_seals WHERE kind = ? AND subject_key IN ({placeholders})"
        );
        let mut statement = Statement::new(database, &sql).bind(self.kind());
        for row in rows {
            statement = statement.bind(row.key.clone());
        }
        let found = statement.rows(connection).await?;
        found.iter().map(|row| Ok((column(row, 0)?, column(row, 1)?))).collect()
    }

    /// The number of rows.
    pub(crate) async fn rows(
        self,
        connection: &mut AnyConnection,
        database: Kind,
    ) -> Result<i64, CatalogError> {
        let sql = format!("SELECT COUNT(*) FROM {}", self.table().name);
        let row = Statement::new(database, &sql).bulk().row(connection).await?;
        row.map_or(Ok(0), |row| column(&row, 0))
    }

    /// Seals without a row, by the rows' unique column.
    pub(crate) async fn orphans(
        self,
        connection: &mut AnyConnection,
        database: Kind,
        limit: i64,
    ) -> Result<Vec<String>, CatalogError> {
        let Table { kind, name, key, .. } = self.table();
        let sql = format!(
            "SELECT subject_key FROM pacegate_seals WHERE kind = ? AND NOT EXISTS (SELECT 1 FROM {name} WHERE {key} = subject_key) \
             ORDER BY subject_key LIMIT ?"
        );
        let rows = Statement::new(database, &sql).bind(*kind).bind(limit).bulk().rows(connection).await?;
        rows.iter().map(|row| column(row, 0)).collect()
    }

    /// Seals the rows with these keys as they are now, and drops the seals of deleted ones.
    pub(crate) async fn seal(
        self,
        connection: &mut AnyConnection,
        database: Kind,
        key: &AuditKey,
        counts: &mut Counts,
        keys: &[String],
    ) -> Result<(), CatalogError> {
        for keys in keys.chunks(usize::try_from(PAGE).unwrap_or(1)) {
            let placeholders = vec!["?"; keys.len()].join(", ");
            let column = self.table().key;
            let bind = |mut statement: Statement<'static>| {
                for key in keys {
                    statement = statement.bind(key.clone());
                }
                statement
            };
            let rows = bind(self.select(database, &format!("WHERE {column} IN ({placeholders})")));
            let rows = rows.rows(connection).await?;
            let rows: Vec<SealedRow> =
                rows.iter().map(|row| self.read(key, row)).collect::<Result<_, _>>()?;
            let delete =
                format!("DELETE FROM pacegate_seals WHERE kind = ? AND subject_key IN ({placeholders})");
            let delete = bind(Statement::new(database, &delete).bind(self.kind()));
            let deleted = delete.run(connection).await?;
            self.insert(connection, database, &rows).await?;
            if let Some(count) = self.count(counts) {
                *count += rows.len() as i64 - i64::try_from(deleted).unwrap_or(0);
            }
        }
        Ok(())
    }

    async fn insert(
        self,
        connection: &mut AnyConnection,
        database: Kind,
        rows: &[SealedRow],
    ) -> Result<(), CatalogError> {
        if rows.is_empty() {
            return Ok(());
        }
        let placeholders = vec!["(?, ?, ?)"; rows.len()].join(", ");
        let sql = format!("INSERT INTO pacegate_seals (kind, subject_key, seal) VALUES {placeholders}");
        let mut statement = Statement::new(database, &sql);
        for row in rows {
            statement = statement.bind(self.kind()).bind(row.key.clone()).bind(row.seal.clone());
        }
        statement.run(connection).await.map(drop)
    }
}

/// Seals every row as it is now. Returns the number of rows.
pub(crate) async fn seal_all(
    connection: &mut AnyConnection,
    database: Kind,
    key: &AuditKey,
) -> Result<Counts, CatalogError> {
    Statement::new(database, "DELETE FROM pacegate_seals").bulk().run(connection).await?;
    let mut counts = Counts::default();
    for sealed in Sealed::ALL {
        let mut after = String::new();
        loop {
            let rows = sealed.page(connection, database, key, &after).await?;
            let Some(last) = rows.last() else { break };
            after.clone_from(&last.key);
            sealed.insert(connection, database, &rows).await?;
            if let Some(count) = sealed.count(&mut counts) {
                *count += rows.len() as i64;
            }
        }
    }
    Ok(counts)
}
