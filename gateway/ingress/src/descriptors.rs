//! Open files: the share of clients in the limit of the process.
//!
//! Invariant: whatever clients do, descriptors are left for the admin listener, the control socket, and instances that start.

use nix::sys::resource::{Resource, getrlimit};

/// Descriptors that clients cannot have; half of all where the limit is small.
const RESERVE: u64 = 4096;
/// Descriptors of one upload: two sockets, two ends of a pipe, the connection once more, and once more for the model.
const UPLOAD: u64 = 6;
/// Uploads that are possible beside all connections.
const LEAST_UPLOADS: u64 = 8;
/// Upper bound of uploads, more than are ever needed.
const MOST_UPLOADS: u64 = 1 << 16;

/// Share of clients in the open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientShare {
    /// Connections at a time.
    pub connections: usize,
    /// Uploads at a time.
    pub uploads: usize,
}

/// The limit of open files of this process.
#[must_use]
pub fn limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// The share of clients in so many open files, with so many configured connections.
#[must_use]
pub fn share(limit: u64, configured: u32) -> ClientShare {
    let clients = limit - RESERVE.min(limit / 2);
    let connections = clients.saturating_sub(LEAST_UPLOADS * UPLOAD).clamp(1, configured.max(1).into());
    let uploads = (clients.saturating_sub(connections) / UPLOAD).clamp(1, MOST_UPLOADS);
    let count = |number| usize::try_from(number).unwrap_or(usize::MAX);
    ClientShare { connections: count(connections), uploads: count(uploads) }
}

/// Warning for an operator who has configured more connections than there can be.
#[must_use]
pub fn shortage(limit: u64, configured: u32) -> Option<String> {
    let ClientShare { connections, .. } = share(limit, configured);
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
    fn clients_leave_descriptors_to_the_node() {
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
            assert_eq!(share(limit, configured), ClientShare { connections, uploads }, "{limit} {configured}");
        }
    }

    #[test]
    fn fewer_connections_than_configured_are_a_warning() {
        assert_eq!(shortage(1 << 20, 12_000), None);
        let warning = shortage(256, 12_000).unwrap();
        assert!(
            warning.starts_with("80 client connections") && warning.contains("12000") && warning.contains("is 256"),
            "{warning}"
        );
    }
}
