//! Network namespaces on one bridge, some of them behind routers: for tests of miners that accept no connections.

use crate::support::{Net, last_finalised};
use daemon::config::File;
use protocol::{Uid, Window};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
};

/// Address of chain and store: the namespace of this test.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Windows in which a contribution may be missing, because the machine may be busy.
const LATE_MAX: u32 = 3;

/// Runs a program that must succeed. Returns its output.
#[track_caller]
pub fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program"));
    let output = command.args(words).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Makes the bridge that connects all namespaces, and the directory of the namespaces.
pub fn make_bridge() {
    let links = run("ip -o link");
    assert!(
        links.lines().all(|line| line.contains(": lo:")),
        "this would change the network of the machine; run it by `unshare --net --mount cargo test …`"
    );
    // Names of namespaces are files here. They disappear with the mount namespace.
    std::fs::create_dir_all("/run/netns").expect("root may");
    run("mount -t tmpfs namespaces /run/netns");
    run("ip link set lo up");
    run("ip link add wan0 type bridge");
    run(&format!("ip addr add {HOST}/24 dev wan0"));
    run("ip link set wan0 up");
}

/// Connects a namespace to the bridge by the interface `wan`.
pub fn attach(namespace: &str, index: u8) {
    run(&format!("ip netns add {namespace}"));
    run(&format!("ip -n {namespace} link set lo up"));
    run(&format!("ip link add to{index} type veth peer name wan netns {namespace}"));
    run(&format!("ip link set to{index} master wan0 up"));
    run(&format!("ip -n {namespace} addr add {}/24 dev wan", public(index)));
    run(&format!("ip -n {namespace} link set wan up"));
}

pub fn public(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, index)
}

/// Assigns addresses to both ends of a home's line: `eth` of the home, and `lan` of its router.
pub fn address_home(name: &str, router: &str, index: u8) {
    run(&format!("ip -n {router} addr add 192.168.{index}.1/24 dev lan"));
    run(&format!("ip -n {router} link set lan up"));
    run(&format!("ip -n {name} addr add 192.168.{index}.2/24 dev eth"));
    run(&format!("ip -n {name} link set eth up"));
    run(&format!("ip -n {name} route add default via 192.168.{index}.1"));
}

/// Refuses incoming connections. If `symmetric`, each connection gets another port.
pub fn make_router(router: &str, symmetric: bool) {
    let inside = |command: &str| run(&format!("ip netns exec {router} {command}"));
    inside("sysctl -qw net.ipv4.ip_forward=1");
    inside("iptables -P FORWARD DROP");
    // Like a home router, it drops packets of unknown connections without an answer.
    inside("iptables -A INPUT -i wan -m conntrack --ctstate NEW,INVALID -j DROP");
    inside("iptables -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT");
    inside("iptables -A FORWARD -i lan -o wan -j ACCEPT");
    for transport in ["tcp", "udp"] {
        let ports = if symmetric { "--random-fully" } else { "" };
        inside(&format!("iptables -t nat -A POSTROUTING -o wan -p {transport} -j MASQUERADE {ports}"));
    }
}

/// Moves each seat into its namespace, and gives validators the address of theirs. Returns the addresses at which
/// validators accept contributions.
pub fn place_seats(
    net: &mut Net,
    namespace: impl Fn(&str) -> String,
    validator: impl Fn(&str) -> Ipv4Addr,
) -> Vec<SocketAddr> {
    let mut ports = Vec::new();
    for seat in &net.plan.seats {
        net.network.namespaces.insert(seat.name.clone(), namespace(&seat.name));
        let path = net.directory().join(&seat.name).join("settings.toml");
        let mut settings: File =
            toml::from_str(&std::fs::read_to_string(&path).expect("written")).expect("TOML");
        if let Some(peer) = &mut settings.peer {
            let listen = peer.listen.as_mut().expect("a validator of a localnet listens");
            listen.set_ip(IpAddr::V4(validator(&seat.name)));
            ports.push(*listen);
        }
        // The data comes from the run's origin, as in other networks.
        settings.dataset = None;
        std::fs::write(&path, toml::to_string(&settings).expect("settings are TOML")).expect("a file");
    }
    ports
}

/// Returns the miners whose contributions were selected in a window.
async fn selected(net: &Net, window: Window) -> BTreeSet<Uid> {
    let view = net.chain.window(net.observer.run.id, window).await.expect("our chain answers");
    let selection = view.and_then(|view| view.selection);
    selection.into_iter().flat_map(|all| all.selected).map(|one| one.uid).collect()
}

/// Waits until `wanted` more windows were merged with the contributions of all `miners`.
pub async fn until_all_selected(net: &mut Net, miners: &[&str], wanted: u32) {
    let miners: BTreeSet<Uid> = miners.iter().map(|name| net.uid(name)).collect();
    let (first, mut complete) = (last_finalised(&net.observer) + 1, 0);
    for window in first..first + wanted + LATE_MAX {
        net.until(&format!("window {window} is finalised"), |seen| window <= last_finalised(seen)).await;
        let found = selected(net, Window(window)).await;
        complete += u32::from(miners.is_subset(&found));
        println!("window {window}: selected {found:?} of {miners:?}");
        if wanted <= complete {
            return;
        }
    }
    panic!("only {complete} windows had the contributions of all miners{}", net.last_lines());
}
