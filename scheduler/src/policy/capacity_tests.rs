//! Tables and properties of the ledger.
