//! The sandbox: namespaces, mounts, users, filters.
