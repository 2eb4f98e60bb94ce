//! Classification of an endpoint by its URL alone: this machine, a private network, or public.

use std::net::IpAddr;

/// Returns whether the host of `url` can only be on this machine or in a private network: a private address,
/// `localhost`, a name without a dot, or one below `.local` or `.internal`. Public name servers resolve none of these.
pub fn is_private(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '\\', '?', '#']).next().unwrap_or(rest);
    let named = authority.rsplit_once('@').map_or(authority, |(_, named)| named);
    let host = match named.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => named,
    };
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_private() || address.is_link_local(),
        Ok(IpAddr::V6(address)) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
        Err(_) => {
            let name = host.to_ascii_lowercase();
            let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic());
            is_name && (!name.contains('.') || name.ends_with(".local") || name.ends_with(".internal"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hosts_that_no_public_name_server_knows_are_private() {
        for url in [
            "ws://127.0.0.1:9944",
            "ws://localhost:9944/",
            "wss://10.1.2.3",
            "ws://192.168.0.9:1/a",
            "ws://[::1]:9944",
            "ws://[fd00::1]",
            "ws://node-0:9944",
            "ws://node.default.svc.cluster.local:9944",
            "ws://chain.internal",
        ] {
            assert!(is_private(url), "{url}");
        }
        for url in [
            "ws://8.8.8.8:9944",
            "wss://rpc.example:443",
            "ws://127.0.0.1@rpc.example",
            "ws://rpc.example/127.0.0.1",
            "ws://127.0.0.1.example",
            "ws://134744072",
            "ws://0x08080808",
            "ws://[2001:4860:4860::8888]:9944",
            "ws://",
        ] {
            assert!(!is_private(url), "{url}");
        }
    }
}
