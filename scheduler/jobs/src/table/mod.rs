//! Statements over the tables, by table. Each function is one step of a transaction, or one short read.

pub(crate) mod batches;
pub(crate) mod files;
pub(crate) mod items;
pub(crate) mod owners;
#[cfg(test)]
mod tests;

use crate::time::UnixMillis;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};

impl ToSql for UnixMillis {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        // Later than any time that a clock says: "never" is the latest that the database knows.
        Ok(i64::try_from(self.0).unwrap_or(i64::MAX).into())
    }
}

impl FromSql for UnixMillis {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        u64::column_result(value).map(Self)
    }
}

/// Reads a text of the database as a value of a closed set.
fn known<T>(text: &str, parse: impl FnOnce(&str) -> Option<T>) -> rusqlite::Result<T> {
    parse(text).ok_or_else(|| FromSqlError::Other(format!("unknown value `{text}`").into()).into())
}
