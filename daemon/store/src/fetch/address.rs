//! The addresses that a node may fetch from: only those of the public internet.
//!
//! The endpoint `http://169.254.169.254/` would make a validator read the secrets of its own cloud instance. The owner
//! of a name can redirect it there at any time. So the fetcher checks addresses, never names, and connects to exactly
//! the address that it checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The kind of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressClass {
    /// An address of the public internet.
    Public,
    /// `0.0.0.0/8`, `::`: this host, on this network.
    Unspecified,
    Loopback,
    /// `10/8`, `172.16/12`, `192.168/16`, `fc00::/7`.
    Private,
    /// `169.254/16`, `fe80::/10`: clouds serve the secrets of an instance there.
    LinkLocal,
    /// `100.64/10`: behind a carrier's address translation.
    CarrierGrade,
    Multicast,
    Broadcast,
    /// An IPv6 address for an IPv4 address: mapped, compatible, NAT64, 6to4 or Teredo.
    Translated,
    /// Addresses for documentation, benchmarks or protocol assignments, and unassigned ones.
    Reserved,
}

impl AddressClass {
    pub fn of(address: IpAddr) -> AddressClass {
        match address {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }

    /// Returns whether a fetcher may connect; with `allow_private` (a localnet) also to private addresses.
    pub fn allowed(self, allow_private: bool) -> bool {
        match self {
            AddressClass::Public => true,
            AddressClass::Loopback
            | AddressClass::Private
            | AddressClass::LinkLocal
            | AddressClass::CarrierGrade
            | AddressClass::Reserved => allow_private,
            AddressClass::Unspecified
            | AddressClass::Multicast
            | AddressClass::Broadcast
            | AddressClass::Translated => false,
        }
    }
}

impl std::fmt::Display for AddressClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AddressClass::Public => "public",
            AddressClass::Unspecified => "unspecified",
            AddressClass::Loopback => "loopback",
            AddressClass::Private => "private",
            AddressClass::LinkLocal => "link-local",
            AddressClass::CarrierGrade => "behind a carrier's translation",
            AddressClass::Multicast => "multicast",
            AddressClass::Broadcast => "broadcast",
            AddressClass::Translated => "an IPv4 address in an IPv6 one",
            AddressClass::Reserved => "reserved",
        })
    }
}

fn of_v4(address: Ipv4Addr) -> AddressClass {
    match address.octets() {
        [0, ..] => AddressClass::Unspecified,
        [127, ..] => AddressClass::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => AddressClass::Private,
        [169, 254, ..] => AddressClass::LinkLocal,
        [100, 64..=127, ..] => AddressClass::CarrierGrade,
        [192, 0, 0, _] | [192, 0, 2, _] | [192, 88, 99, _] | [192, 31, 196, _] | [192, 52, 193, _] => {
            AddressClass::Reserved
        }
        [192, 175, 48, _] | [198, 18..=19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => {
            AddressClass::Reserved
        }
        [224..=239, ..] => AddressClass::Multicast,
        [255, 255, 255, 255] => AddressClass::Broadcast,
        [240..=255, ..] => AddressClass::Reserved,
        _ => AddressClass::Public,
    }
}

/// Classifies an IPv6 address. Only parts of `2000::/3` belong to the public internet.
fn of_v6(address: Ipv6Addr) -> AddressClass {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => AddressClass::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressClass::Loopback,
        // IPv4-compatible and IPv4-mapped; ::ffff:0:0:0/96; NAT64, well-known and local.
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => AddressClass::Translated,
        [0x64, 0xff9b, ..] => AddressClass::Translated,
        // Teredo and 6to4.
        [0x2001, 0, ..] | [0x2002, ..] => AddressClass::Translated,
        // ISATAP: the last half is an IPv4 address behind a fixed prefix.
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => AddressClass::Translated,
        [0x2001, 0x1..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => AddressClass::Reserved,
        [0xfc00..=0xfdff, ..] => AddressClass::Private,
        [0xfe80..=0xfebf, ..] => AddressClass::LinkLocal,
        [0xff00..=0xffff, ..] => AddressClass::Multicast,
        [0x2000..=0x3fff, ..] => AddressClass::Public,
        _ => AddressClass::Reserved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn class(text: &str) -> AddressClass {
        AddressClass::of(text.parse().expect("an address"))
    }

    #[test]
    fn every_kind_of_address_is_known() {
        use AddressClass::*;
        for (text, expected) in [
            ("8.8.8.8", Public),
            ("172.15.255.255", Public),
            ("172.32.0.0", Public),
            ("100.63.255.255", Public),
            ("100.128.0.0", Public),
            ("2606:4700:4700::1111", Public),
            ("2a00:1450:4001:800::200e", Public),
            ("0.0.0.0", Unspecified),
            ("0.1.2.3", Unspecified),
            ("::", Unspecified),
            ("127.0.0.1", Loopback),
            ("127.255.255.254", Loopback),
            ("::1", Loopback),
            ("10.0.0.1", Private),
            ("172.16.0.1", Private),
            ("172.31.255.255", Private),
            ("192.168.1.1", Private),
            ("fd00::1", Private),
            ("fc00::1", Private),
            ("169.254.169.254", LinkLocal),
            ("fe80::1", LinkLocal),
            ("100.64.0.1", CarrierGrade),
            ("224.0.0.1", Multicast),
            ("ff02::1", Multicast),
            ("255.255.255.255", Broadcast),
            ("240.0.0.1", Reserved),
            ("192.0.2.1", Reserved),
            ("198.18.0.1", Reserved),
            ("2001:db8::1", Reserved),
            ("2001:20::1", Reserved),
            ("4000::1", Reserved),
            ("fec0::1", Reserved),
            ("::ffff:127.0.0.1", Translated),
            ("::ffff:8.8.8.8", Translated),
            ("::127.0.0.1", Translated),
            ("64:ff9b::7f00:1", Translated),
            ("64:ff9b:1::1", Translated),
            ("2002:7f00:1::", Translated),
            ("2001:0:4136:e378::1", Translated),
            ("2001:470::5efe:7f00:1", Translated),
        ] {
            assert_eq!(class(text), expected, "{text}");
        }
    }

    #[test]
    fn a_localnet_may_stay_at_home_but_not_shout() {
        for home in ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.1", "fd00::1", "172.17.0.2"] {
            assert!(class(home).allowed(true) && !class(home).allowed(false), "{home}");
        }
        for never in ["224.0.0.1", "255.255.255.255", "0.0.0.0", "::", "::ffff:127.0.0.1", "ff02::1"] {
            assert!(!class(never).allowed(true), "{never}");
        }
    }

    proptest! {
        #[test]
        fn no_ipv4_address_gets_in_by_way_of_ipv6(octets: [u8; 4]) {
            let v4 = Ipv4Addr::from(octets);
            prop_assert_ne!(AddressClass::of(IpAddr::V6(v4.to_ipv6_mapped())), AddressClass::Public);
            let [a, b, c, d] = octets.map(u16::from);
            let (high, low) = (a << 8 | b, c << 8 | d);
            for v6 in [
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
            ] {
                prop_assert_ne!(AddressClass::of(IpAddr::V6(v6)), AddressClass::Public);
            }
        }

        #[test]
        fn what_the_standard_library_calls_private_is_never_public(bits: u32) {
            let address = Ipv4Addr::from(bits);
            let special = address.is_private() || address.is_loopback() || address.is_link_local()
                || address.is_broadcast() || address.is_documentation() || address.is_multicast()
                || address.is_unspecified();
            prop_assert!(!special || AddressClass::of(address.into()) != AddressClass::Public);
        }
    }
}
