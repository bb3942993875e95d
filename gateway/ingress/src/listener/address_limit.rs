//! Limit of connections from one address, where it is configured.
//!
//! Invariant: an address has an entry for as long as it has a connection.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Connections of a listener by address.
#[derive(Debug)]
pub(super) struct AddressLimit {
    /// Most connections of each address; `None`: no limit.
    limit: Option<u32>,
    open: Mutex<HashMap<IpAddr, u32>>,
}

/// Place of one connection, until it is dropped.
#[derive(Debug, Default)]
pub(super) struct AddressPermit(Option<(Arc<AddressLimit>, IpAddr)>);

impl AddressLimit {
    pub(super) fn new(limit: Option<u32>) -> Arc<Self> {
        Arc::new(Self { limit, open: Mutex::default() })
    }

    /// Permit for a connection from an address; `None` when it has as many as it may.
    pub(super) fn acquire(self: &Arc<Self>, address: IpAddr) -> Option<AddressPermit> {
        let Some(limit) = self.limit else { return Some(AddressPermit::default()) };
        let address = network(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= limit {
            return None;
        }
        *count += 1;
        Some(AddressPermit(Some((Arc::clone(self), address))))
    }
}

/// The network of an address: an IPv6 client has any number of addresses below its first 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        IpAddr::V4(address) => IpAddr::V4(address),
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let Some((limit, address)) = self.0.take() else { return };
        let mut open = limit.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_limit() {
        let addresses = AddressLimit::new(Some(2));
        let enter = |text: &str| addresses.acquire(text.parse().unwrap());
        let (one, two) = (enter("10.0.0.1"), enter("::ffff:10.0.0.1"));
        assert!(one.is_some() && two.is_some() && enter("10.0.0.1").is_none());
        let (six, seven) = (enter("2001:db8::1"), enter("2001:db8::2"));
        assert!(six.is_some() && seven.is_some() && enter("2001:db8::3").is_none(), "a network is one client");
        assert!(enter("2001:db8:0:1::1").is_some());
        drop(one);
        assert!(enter("10.0.0.1").is_some());
        drop((two, six, seven));
        assert!(addresses.open.lock().unwrap().is_empty());
        let all = AddressLimit::new(None);
        let many: Vec<_> = (0..100).map(|_| all.acquire("10.0.0.1".parse().unwrap()).unwrap()).collect();
        assert!(all.open.lock().unwrap().is_empty(), "{} are not counted", many.len());
    }
}
