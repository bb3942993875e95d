//! Rules of the node about a source's servers: which URLs may be asked, and which hosts may be private. Pure.

use crate::address::{Class, class};
use crate::url::{Origin, Url};
use core::net::IpAddr;

/// Rules for the servers of one source.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// The source's own server.
    pub(crate) own: Origin,
    /// Hosts that it may redirect to, `*.` for all below a domain.
    pub(crate) redirects: Vec<String>,
    /// Hosts that may have private addresses.
    pub(crate) private_hosts: Vec<String>,
}

/// Why a URL or an address is not asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{url} redirects to {host}, which is not listed as `redirects` of the source in the node's configuration")]
    Host { url: String, host: String },
    #[error("{url} redirects to {host} without TLS")]
    Plain { url: String, host: String },
    #[error(
        "{host} has the address {address}, which is of this machine or a private network: the operator has to list the \
         host as `private-hosts` in [weights] of the node's configuration"
    )]
    Private { host: String, address: IpAddr },
    #[error("{host} has the address {address}, which weights are never fetched from")]
    Never { host: String, address: IpAddr },
}

impl Rules {
    /// Checks a redirect from one URL to another.
    pub(crate) fn redirect(&self, from: &Url, to: &Url) -> Result<(), Refusal> {
        if to.origin == self.own {
            return Ok(());
        }
        let (url, host) = (from.to_string(), to.origin.host.clone());
        if !self.redirects.iter().any(|pattern| matches(pattern, &host)) {
            return Err(Refusal::Host { url, host: to.origin.to_string() });
        }
        if to.origin.is_plain && !self.own.is_plain { Err(Refusal::Plain { url, host }) } else { Ok(()) }
    }

    /// Checks all addresses of a host. One that is refused refuses the host: what is left could be another by chance.
    pub(crate) fn addresses(&self, host: &str, addresses: &[IpAddr]) -> Result<(), Refusal> {
        for address in addresses {
            match class(*address) {
                Class::Public => {}
                Class::Private if self.private_hosts.iter().any(|listed| listed == host) => {}
                Class::Private => return Err(Refusal::Private { host: host.to_owned(), address: *address }),
                Class::Never => return Err(Refusal::Never { host: host.to_owned(), address: *address }),
            }
        }
        Ok(())
    }
}

fn matches(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(end) => host.strip_suffix(end).is_some_and(|begin| !begin.is_empty()),
        None => pattern == host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(own: &str) -> Rules {
        Rules {
            own: Url::parse(own).unwrap().origin,
            redirects: vec!["*.hf.co".to_owned(), "cdn.example".to_owned()],
            private_hosts: vec!["store.internal".to_owned(), "127.0.0.1".to_owned()],
        }
    }

    #[test]
    fn redirects_lead_to_the_server_itself_or_to_listed_hosts() {
        let table = [
            ("https://hub", "https://hub/other", true),
            ("https://hub", "https://cas.hf.co/x", true),
            ("https://hub", "https://a.b.hf.co/x", true),
            ("https://hub", "https://cdn.example/x", true),
            ("https://hub", "https://hf.co/x", false),
            ("https://hub", "https://evilhf.co/x", false),
            ("https://hub", "https://cdn.example.evil/x", false),
            ("https://hub", "https://hub:8443/x", false),
            ("https://hub", "http://hub/x", false),
            ("https://hub", "http://cdn.example/x", false),
            ("https://hub", "http://169.254.169.254/latest/meta-data", false),
            ("https://hub", "http://127.0.0.1:9090/metrics", false),
            ("https://hub", "http://localhost/x", false),
            ("https://hub", "https://[::1]/x", false),
            ("http://hub", "http://cdn.example/x", true),
            ("http://hub", "https://cdn.example/x", true),
        ];
        for (own, to, allowed) in table {
            let (own, to) = (Url::parse(own).unwrap(), Url::parse(to).unwrap());
            assert_eq!(rules(&own.origin.to_string()).redirect(&own, &to).is_ok(), allowed, "{own} {to}");
        }
    }

    #[test]
    fn a_host_with_one_refused_address_is_refused() {
        let table: &[(&str, &[&str], bool)] = &[
            ("public.example", &["1.1.1.1", "2606:4700::1"], true),
            ("public.example", &["1.1.1.1", "10.0.0.1"], false),
            ("public.example", &["127.0.0.1"], false),
            ("store.internal", &["10.0.0.1", "fd12::1"], true),
            ("store.internal", &["10.0.0.1", "169.254.169.254"], false),
            ("store.internal", &["fd00:ec2::254"], false),
            ("127.0.0.1", &["127.0.0.1"], true),
            ("127.0.0.2", &["127.0.0.2"], false),
            ("169.254.169.254", &["169.254.169.254"], false),
        ];
        for (host, addresses, allowed) in table {
            let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
            assert_eq!(rules("https://hub").addresses(host, &addresses).is_ok(), *allowed, "{host} {addresses:?}");
        }
    }
}
