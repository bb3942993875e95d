//! Addresses that weights may be fetched from. Pure.
//!
//! A source is named by the author of a model: it must not lead to services that trust the node's own network, such as a
//! cloud's metadata, the admin listener, or a store without a password.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Kind of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Address of the public network.
    Public,
    /// Address of this machine or a private network: for hosts that the operator has listed.
    Private,
    /// Address of a cloud's metadata, of a link, of a group, or of nobody: never asked.
    Never,
}

/// Services of clouds, outside the ranges that are never reached anyway: Azure's, Alibaba's, and Amazon's over IPv6.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// The kind of an address. One that has another in it, as translations between the protocols do, is of that one's kind.
pub(crate) fn class(address: IpAddr) -> Class {
    if METADATA.contains(&address) {
        return Class::Never;
    }
    match address {
        IpAddr::V4(address) => class_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(inner) => class(IpAddr::V4(inner)),
            None => class_v6(address),
        },
    }
}

fn class_v4(address: Ipv4Addr) -> Class {
    match address.octets() {
        // The network itself, links, protocol assignments (a cloud's metadata is among them), examples, groups, reserved.
        [0, ..]
        | [169, 254, ..]
        | [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [224..=255, ..] => Class::Never,
        // The machine itself, private networks, those of carriers, those of benchmarks.
        [10 | 127, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] | [198, 18 | 19, ..] => {
            Class::Private
        }
        _ => Class::Public,
    }
}

fn class_v6(address: Ipv6Addr) -> Class {
    if address.is_loopback() {
        return Class::Private;
    }
    match address.segments() {
        [0xfc00..=0xfdff, ..] => Class::Private,
        // Tunnels that hide where they lead, and examples.
        [0x2001, 0 | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Class::Never,
        // The public network is in this part.
        [0x2000..=0x3fff, ..] => Class::Public,
        _ => Class::Never,
    }
}

/// The IPv4 address in a mapped, compatible, translated (NAT64) or 6to4 address.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let of = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => Some(of(g, h)),
        [0, 0, 0, 0, 0, 0] if (g, h) > (0, 0xff) => Some(of(g, h)),
        [0x64, 0xff9b, 1, ..] => Some(of(g, h)),
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_their_kind_in_every_form() {
        let table: &[(Class, &[&str])] = &[
            (Class::Public, &["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]),
            (
                Class::Private,
                &[
                    "127.0.0.1",
                    "127.9.9.9",
                    "10.0.0.1",
                    "172.16.0.1",
                    "172.31.255.255",
                    "192.168.1.1",
                    "100.64.0.1",
                    "198.18.0.1",
                    "::1",
                    "fd12::1",
                    "fc00::1",
                    "::ffff:127.0.0.1",
                    "::ffff:10.0.0.1",
                    "64:ff9b::7f00:1",
                    "64:ff9b:1::a00:1",
                    "2002:7f00:1::",
                    "::127.0.0.1",
                ],
            ),
            (
                Class::Never,
                &[
                    "169.254.169.254",
                    "169.254.170.2",
                    "::ffff:169.254.169.254",
                    "64:ff9b::a9fe:a9fe",
                    "2002:a9fe:a9fe::1",
                    "::169.254.169.254",
                    "fd00:ec2::254",
                    "168.63.129.16",
                    "100.100.100.200",
                    "192.0.0.192",
                    "0.0.0.0",
                    "0.1.2.3",
                    "224.0.0.1",
                    "255.255.255.255",
                    "240.0.0.1",
                    "::",
                    "fe80::1",
                    "ff02::1",
                    "2001::1",
                    "2001:db8::1",
                    "fec0::1",
                    "100::1",
                ],
            ),
        ];
        for (expected, addresses) in table {
            for address in *addresses {
                assert_eq!(class(address.parse().unwrap()), *expected, "{address}");
            }
        }
    }
}
