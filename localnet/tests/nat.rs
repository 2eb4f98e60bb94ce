//! A network behind routers that let nobody in: two miners with neither a bucket nor an open port, one of them behind a
//! symmetric NAT, two miners and three validators beside chain and store, each in a network namespace (PROT-34).
//!
//! Needs root and the programs `ip` and `iptables`, so it runs only when asked to, in namespaces of its own:
//!
//! ```text
//! unshare --net --mount cargo test --release -p localnet --test nat -- --ignored --nocapture
//! ```

#[allow(dead_code, reason = "shared with the other tests of whole networks")]
mod support;

use localnet::{
    layout::ChainPlan,
    seats::Seats,
    setup::{ChainWanted, Wanted},
};
use node::config::File;
use protocol::{Uid, Window};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::{Command, Stdio},
    sync::LazyLock,
};
use support::{Net, Shared, holds_since, last_finalised, merged, merged_since, params, wanted};

/// Where chain and store are: the namespace of this test.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const VALIDATORS: [&str; 3] = ["validator-0", "validator-1", "validator-2"];
const OPEN: [&str; 2] = ["miner-0", "miner-2"];
/// Miners at home, and whether their router gives each connection another port.
const HOMES: [(&str, bool); 2] = [("miner-1", false), ("miner-3", true)];
/// Windows in which a contribution may be missing: the machine may be busy.
const LATE_MAX: u32 = 3;

static NETWORK: LazyLock<Shared> = LazyLock::new(|| Shared::start("nat", start));

/// Runs a program that must succeed, and returns what it prints.
#[track_caller]
fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program"));
    let output = command.args(words).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn router(miner: &str) -> String {
    format!("router-{miner}")
}

/// Connects a namespace to the bridge by the interface `wan`.
fn attach(namespace: &str, index: u8) {
    run(&format!("ip netns add {namespace}"));
    run(&format!("ip -n {namespace} link set lo up"));
    run(&format!("ip link add to{index} type veth peer name wan netns {namespace}"));
    run(&format!("ip link set to{index} master wan0 up"));
    run(&format!("ip -n {namespace} addr add {}/24 dev wan", public(index)));
    run(&format!("ip -n {namespace} link set wan up"));
}

fn public(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, index)
}

fn validator_index(name: &str) -> u8 {
    let place = VALIDATORS.iter().position(|validator| *validator == name).expect("a validator");
    11 + u8::try_from(place).expect("few validators")
}

/// The namespaces without a process.
fn make_namespaces() {
    let links = run("ip -o link");
    assert!(
        links.lines().all(|line| line.contains(": lo:")),
        "this would change the network of the machine; run it by `unshare --net --mount cargo test …`"
    );
    // Names of namespaces are files here, which are gone with the namespace of mounts.
    std::fs::create_dir_all("/run/netns").expect("root may");
    run("mount -t tmpfs namespaces /run/netns");
    run("ip link set lo up");
    run("ip link add wan0 type bridge");
    run(&format!("ip addr add {HOST}/24 dev wan0"));
    run("ip link set wan0 up");
    for name in VALIDATORS {
        attach(name, validator_index(name));
    }
    for (index, name) in (21..).zip(OPEN) {
        attach(name, index);
    }
    for (index, (name, symmetric)) in (31..).zip(HOMES) {
        let router = router(name);
        attach(&router, index);
        run(&format!("ip netns add {name}"));
        run(&format!("ip -n {name} link set lo up"));
        run(&format!("ip -n {router} link add lan type veth peer name eth netns {name}"));
        run(&format!("ip -n {router} addr add 192.168.{index}.1/24 dev lan"));
        run(&format!("ip -n {router} link set lan up"));
        run(&format!("ip -n {name} addr add 192.168.{index}.2/24 dev eth"));
        run(&format!("ip -n {name} link set eth up"));
        run(&format!("ip -n {name} route add default via 192.168.{index}.1"));
        let inside = |command: &str| run(&format!("ip netns exec {router} {command}"));
        inside("sysctl -qw net.ipv4.ip_forward=1");
        inside("iptables -P FORWARD DROP");
        // As a home router does: what nobody asked for is dropped without an answer.
        inside("iptables -A INPUT -i wan -m conntrack --ctstate NEW,INVALID -j DROP");
        inside("iptables -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT");
        inside("iptables -A FORWARD -i lan -o wan -j ACCEPT");
        for transport in ["tcp", "udp"] {
            let ports = if symmetric { "--random-fully" } else { "" };
            inside(&format!("iptables -t nat -A POSTROUTING -o wan -p {transport} -j MASQUERADE {ports}"));
        }
    }
}

async fn start(home: &Path) -> Net {
    make_namespaces();
    let chain = ChainWanted::Embedded { block_millis: 200 };
    let plain = wanted(chain, Seats::honest(4, 3), params(2), 2).await;
    let wanted = Wanted { nat: true, host: IpAddr::V4(HOST), ..plain };
    let mut net = Net::set_up(home, &wanted).await;
    let mut ports = Vec::new();
    for seat in &net.plan.seats {
        net.network.namespaces.insert(seat.name.clone(), seat.name.clone());
        let path = net.directory().join(&seat.name).join("settings.toml");
        let mut settings: File =
            toml::from_str(&std::fs::read_to_string(&path).expect("written")).expect("TOML");
        if let Some(peer) = &mut settings.peer {
            let listen = peer.listen.as_mut().expect("a validator of a localnet listens");
            listen.set_ip(IpAddr::V4(public(validator_index(&seat.name))));
            ports.push(*listen);
        }
        // The data comes from the run's origin, as elsewhere.
        settings.dataset = None;
        std::fs::write(&path, toml::to_string(&settings).expect("settings are TOML")).expect("a file");
    }
    let bucketless = net.plan.seats.iter().filter(|seat| seat.bucketless).map(|seat| seat.name.as_str());
    assert!(bucketless.eq(HOMES.map(|(name, _)| name)));
    count_bytes(&net, &ports);
    net.start_seats();
    net
}

/// Has the routers count the bytes that cross them, by whom they are exchanged with.
fn count_bytes(net: &Net, validators: &[SocketAddr]) {
    let ChainPlan::Embedded { port, .. } = net.plan.chain else { panic!("the development chain") };
    let mut paths =
        vec![("chain", SocketAddr::from((HOST, port))), ("store", (HOST, net.plan.store_port).into())];
    paths.extend(validators.iter().map(|address| ("validators", *address)));
    for (miner, _) in HOMES {
        for (name, address) in &paths {
            let (ip, port) = (address.ip(), address.port());
            for transport in ["tcp", "udp"] {
                let rule = format!("ip netns exec {} iptables -I FORWARD 1 -p {transport}", router(miner));
                run(&format!("{rule} -d {ip} --dport {port} -m comment --comment {name}-out"));
                run(&format!("{rule} -s {ip} --sport {port} -m comment --comment {name}-in"));
            }
        }
    }
}

fn print_bytes(windows: u32) {
    println!("bytes through each router, {windows} windows finalised:");
    for (miner, symmetric) in HOMES {
        let counted = run(&format!("ip netns exec {} iptables -L FORWARD -v -x -n", router(miner)));
        let of = |path: &str| -> u64 {
            let lines = counted.lines().filter(|line| line.contains(&format!("/* {path} */")));
            lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
        };
        let kind = if symmetric { "symmetric" } else { "port kept" };
        print!("  {miner} ({kind})");
        for path in ["chain", "store", "validators"] {
            print!("  {path}: {} out, {} in", of(&format!("{path}-out")), of(&format!("{path}-in")));
        }
        println!();
        assert!(0 < of("validators-out"), "{miner} sent nothing to validators:\n{counted}");
    }
}

/// The miners whose contributions were selected in a window.
async fn selected(net: &Net, window: Window) -> BTreeSet<Uid> {
    let view = net.chain.window(net.observer.run.id, window).await.expect("our chain answers");
    let selection = view.and_then(|view| view.selection);
    selection.into_iter().flat_map(|all| all.selected).map(|one| one.uid).collect()
}

/// Waits until `wanted` more windows were merged with the contributions of all `miners`.
async fn until_all_selected(net: &mut Net, miners: &[&str], wanted: u32) {
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

fn everybody() -> Vec<&'static str> {
    OPEN.into_iter().chain(HOMES.map(|(name, _)| name)).collect()
}

fn stakes(net: &Net) -> Vec<(Uid, u128)> {
    net.observer.seats.iter().map(|seat| (seat.id.uid, seat.stake)).collect()
}

/// Waits until windows are merged again and every seat holds a model of them.
async fn until_well(net: &mut Net) {
    let (from, seats) = (last_finalised(&net.observer) + 1, net.plan.seats.len());
    net.until("two windows are merged and every seat holds a model of them", |seen| {
        2 <= merged_since(seen, from)
            && seen.held.len() == seats
            && seen.held.keys().all(|name| holds_since(seen, name, from))
    })
    .await;
}

#[test]
#[ignore = "needs root and network namespaces"]
fn miners_behind_routers_are_merged_in_every_window() {
    NETWORK.run(async |net| {
        until_all_selected(net, &everybody(), 3).await;
        print_bytes(net.observer.windows());
        for (miner, _) in HOMES {
            let listening = run(&format!("ip netns exec {miner} cat /proc/net/tcp"));
            let open = listening.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A"));
            // All but the loopback interface: 0100007F.
            let open = open.filter(|line| !line.contains(" 0100007F:"));
            assert_eq!(open.count(), 0, "{miner} has an open port:\n{listening}");
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn one_packet_in_twenty_lost_costs_no_contribution() {
    NETWORK.run(async |net| {
        let rule = "FORWARD -m statistic --mode random --probability 0.05 -j DROP";
        for (miner, _) in HOMES {
            run(&format!("ip netns exec {} iptables -I {rule}", router(miner)));
        }
        until_all_selected(net, &everybody(), 2).await;
        for (miner, _) in HOMES {
            run(&format!("ip netns exec {} iptables -D {rule}", router(miner)));
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn without_one_receiver_the_others_have_the_contributions() {
    NETWORK.run(async |net| {
        net.network.kill(VALIDATORS[0]).await.expect("it ran");
        until_all_selected(net, &everybody(), 2).await;
        net.start(VALIDATORS[0]);
        until_well(net).await;
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_store_that_is_away_for_a_window_stops_nobody() {
    NETWORK.run(async |net| {
        let before = stakes(net);
        net.network.kill("store").await.expect("it ran");
        let now = last_finalised(&net.observer);
        net.until("a window passes without a store", |seen| now + 2 <= last_finalised(seen)).await;
        net.network.start_store(&net.plan).await.expect("the store starts again");
        until_well(net).await;
        assert_eq!(stakes(net), before, "nobody lost stake");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn validators_that_are_cut_off_for_two_windows_lose_windows_and_nothing_else() {
    NETWORK.run(async |net| {
        let before = stakes(net);
        let cut = [VALIDATORS[1], VALIDATORS[2]];
        let link = |name: &str, state: &str| run(&format!("ip link set to{} {state}", validator_index(name)));
        cut.iter().for_each(|name| drop(link(name, "down")));
        let now = last_finalised(&net.observer);
        net.until("two windows pass that nothing is merged in", |seen| {
            let since = seen.outcomes.range(Window(now + 1)..);
            2 <= since.filter(|(_, outcome)| !merged(outcome)).count()
        })
        .await;
        cut.iter().for_each(|name| drop(link(name, "up")));
        until_well(net).await;
        assert_eq!(stakes(net), before, "nobody lost stake");
    });
}
