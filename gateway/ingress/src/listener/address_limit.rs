//! Connections by the address that they come from, where the node bounds them.
//!
//! Counted by [`super::listener`]. What always holds: an address is known for as long as one of its connections is.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// All of a listener.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// The most of each address; `None`: no bound.
    most: Option<u32>,
    open: Mutex<HashMap<IpAddr, u32>>,
}

/// A connection that counts, for as long as this lives.
#[derive(Debug, Default)]
pub(crate) struct Counted(Option<(Arc<Addresses>, IpAddr)>);

impl Addresses {
    pub(crate) fn new(most: Option<u32>) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// A connection from there; `None` when it is one too many.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Counted> {
        let Some(most) = self.most else { return Some(Counted::default()) };
        let address = network(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Counted(Some((Arc::clone(self), address))))
    }
}

/// One of IPv6 has as many addresses as it likes below its first 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        IpAddr::V4(address) => IpAddr::V4(address),
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Some((of, address)) = self.0.take() else { return };
        let mut open = of.open.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn each_address_has_its_own_room() {
        let addresses = Addresses::new(Some(2));
        let enter = |text: &str| addresses.enter(text.parse().unwrap());
        let (one, two) = (enter("10.0.0.1"), enter("::ffff:10.0.0.1"));
        assert!(one.is_some() && two.is_some() && enter("10.0.0.1").is_none());
        let (six, seven) = (enter("2001:db8::1"), enter("2001:db8::2"));
        assert!(six.is_some() && seven.is_some() && enter("2001:db8::3").is_none(), "a network is one client");
        assert!(enter("2001:db8:0:1::1").is_some());
        drop(one);
        assert!(enter("10.0.0.1").is_some());
        drop((two, six, seven));
        assert!(addresses.open.lock().unwrap().is_empty());
        let all = Addresses::new(None);
        let many: Vec<_> = (0..100).map(|_| all.enter("10.0.0.1".parse().unwrap()).unwrap()).collect();
        assert!(all.open.lock().unwrap().is_empty(), "{} count nowhere", many.len());
    }
}
