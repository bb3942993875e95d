//! Addresses of hosts. A trait, so that tests can have a host change its address between two looks.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;

/// Addresses of a host, in time.
pub(crate) type Addresses<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Source of addresses.
pub(crate) trait Resolver: Send + Sync {
    /// Looks a name up.
    fn resolve<'a>(&'a self, host: &'a str) -> Addresses<'a>;
}

/// Resolver of the machine.
pub(crate) struct System;

impl Resolver for System {
    fn resolve<'a>(&'a self, host: &'a str) -> Addresses<'a> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address: SocketAddr| address.ip()).collect())
        })
    }
}
