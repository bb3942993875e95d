//! Open files of the scheduler: how many of them clients may have.
//!
//! Asked by [`crate::front`] when the scheduler starts. What always holds: whatever clients do, descriptors are left for the admin
//! listener, the control socket, and instances that start.

use nix::sys::resource::{Resource, getrlimit};

/// Kept from clients, where there are so many; else half of all.
const RESERVE: u64 = 4096;
/// Of a body that is being uploaded: two sockets, two ends of a pipe, the connection once more, and once more for the model.
const UPLOAD: u64 = 6;
/// Uploads that there is room for beside connections.
const LEAST_UPLOADS: u64 = 8;
/// More uploads than anybody has.
const MOST_UPLOADS: u64 = 1 << 16;

/// What clients may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Connections at a time.
    pub connections: usize,
    /// Bodies at a time that are uploaded into models.
    pub uploads: usize,
}

/// The most open files of this process.
#[must_use]
pub fn limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// The share of clients in so many open files.
#[must_use]
pub fn share(limit: u64, configured: u32) -> Share {
    let clients = limit - RESERVE.min(limit / 2);
    let connections = clients.saturating_sub(LEAST_UPLOADS * UPLOAD).clamp(1, configured.max(1).into());
    let uploads = (clients.saturating_sub(connections) / UPLOAD).clamp(1, MOST_UPLOADS);
    let count = |number| usize::try_from(number).unwrap_or(usize::MAX);
    Share { connections: count(connections), uploads: count(uploads) }
}

/// What an operator is told who has configured more than there can be.
#[must_use]
pub fn shortage(limit: u64, configured: u32) -> Option<String> {
    let Share { connections, .. } = share(limit, configured);
    (connections < configured as usize).then(|| {
        format!(
            "{connections} client connections at a time instead of [server] connections = {configured}: the limit of open \
             files (RLIMIT_NOFILE) is {limit}; raise it (LimitNOFILE= of the unit)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_something_to_the_node() {
        for (limit, configured, connections, uploads) in [
            (1 << 20, 12_000, 12_000, 65_536),
            (20_000, 12_000, 12_000, 650),
            (4096, 12_000, 2000, 8),
            (1024, 12_000, 464, 8),
            (1024, 100, 100, 68),
            (256, 12_000, 80, 8),
            (16, 12_000, 1, 1),
            (0, 1, 1, 1),
            (u64::MAX, 1_000_000, 1_000_000, 65_536),
        ] {
            assert_eq!(share(limit, configured), Share { connections, uploads }, "{limit} {configured}");
        }
    }

    #[test]
    fn fewer_connections_than_configured_are_told() {
        assert_eq!(shortage(1 << 20, 12_000), None);
        let told = shortage(256, 12_000).unwrap();
        assert!(
            told.starts_with("80 client connections") && told.contains("12000") && told.contains("is 256"),
            "{told}"
        );
    }
}
