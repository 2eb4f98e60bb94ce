//! A network behind routers that refuse incoming connections. Two miners have neither a bucket nor an open port, one
//! of them behind a symmetric NAT. Two miners and three validators are next to chain and store, each in a network
//! namespace (PROT-34). Lines of the miners at home lose and delay packets in some tests.
//!
//! Needs root, TUN devices and the programs `ip` and `iptables`, so it is ignored by default. Run it in new
//! namespaces:
//!
//! ```text
//! unshare --net --mount cargo test -p localnet --test labs -- --ignored nat::
//! ```

use crate::lab::{
    HOST, address_home, attach, make_bridge, make_router, place_seats, public, run, until_all_selected,
};
use crate::line::{Degraded, Line, Quality};
use crate::support::{
    BY_CLOCK, Net, harness, holds_since, last_finalised, merged, merged_since, params, wanted,
};
use libtest_mimic::Trial;
use localnet::{layout::ChainPlan, seats::Seats, setup::Wanted};
use protocol::{RunParams, Schedule, Uid, Window};
use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::OnceLock,
    time::Duration,
};

pub fn tests() -> Vec<Trial> {
    harness::ignored(harness::shared!(
        "nat",
        start,
        [
            miners_behind_routers_are_merged_in_every_window,
            one_packet_in_twenty_lost_costs_no_contribution,
            a_home_line_costs_no_contribution,
            without_one_receiver_the_others_have_the_contributions,
            a_store_that_is_away_for_a_window_stops_nobody,
            validators_that_are_cut_off_for_two_windows_lose_windows_and_nothing_else,
        ]
    ))
}

const VALIDATORS: [&str; 3] = ["validator-0", "validator-1", "validator-2"];
const OPEN: [&str; 2] = ["miner-0", "miner-2"];
/// Miners at home, and whether their router gives each connection another port.
const HOMES: [(&str, bool); 2] = [("miner-1", false), ("miner-3", true)];
/// Line of a home far from the validators, over a busy radio.
const HOME_LINE: Quality =
    Quality { loss: 0.03, delay: Duration::from_millis(80), jitter: Duration::from_millis(20) };

/// Lines of [`HOMES`].
static LINES: OnceLock<Vec<Line>> = OnceLock::new();

fn lines() -> &'static [Line] {
    LINES.get().expect("the network has started")
}

/// Returns parameters with time for a miner's work on a busy machine, and for its upload over a slow line.
fn patient_params() -> RunParams {
    let plain = params(2);
    let (commit_by, reveal_by, step) = (22, 38, 7);
    let (attest_by, vote_by) = (reveal_by + step, reveal_by + 2 * step);
    let blocks_per_window = vote_by + step;
    let schedule = Schedule { commit_by, reveal_by, attest_by, vote_by, blocks_per_window, ..plain.schedule };
    RunParams { schedule, sequences_per_seat: 16, ..plain }
}

fn router(miner: &str) -> String {
    format!("router-{miner}")
}

fn validator_index(name: &str) -> u8 {
    let place = VALIDATORS.iter().position(|validator| *validator == name).expect("a validator");
    11 + u8::try_from(place).expect("few validators")
}

/// Makes the namespaces without a process, and the lines of the homes.
fn make_namespaces() -> Vec<Line> {
    make_bridge();
    for name in VALIDATORS {
        attach(name, validator_index(name));
    }
    for (index, name) in (21..).zip(OPEN) {
        attach(name, index);
    }
    let mut lines = Vec::new();
    for (index, (name, symmetric)) in (31..).zip(HOMES) {
        let router = router(name);
        attach(&router, index);
        run(&format!("ip netns add {name}"));
        run(&format!("ip -n {name} link set lo up"));
        let ends = [format!("eth{index}"), format!("lan{index}")];
        let line = Line::open([&ends[0], &ends[1]], index.into());
        lines.push(line.unwrap_or_else(|error| panic!("no TUN device: {error}")));
        run(&format!("ip link set {} netns {name} name eth", ends[0]));
        run(&format!("ip link set {} netns {router} name lan", ends[1]));
        address_home(name, &router, index);
        make_router(&router, symmetric);
    }
    lines
}

/// Starts the network. Blocks follow the clock, because delays and jitter do.
async fn start(home: &Path) -> Net {
    LINES.get_or_init(make_namespaces);
    let plain = wanted(BY_CLOCK, Seats::honest(4, 3), patient_params(), 2).await;
    let wanted = Wanted { nat: true, host: IpAddr::V4(HOST), ..plain };
    let mut net = Net::set_up(home, &wanted).await;
    let address = |name: &str| public(validator_index(name));
    let ports = place_seats(&mut net, |name| name.to_owned(), address);
    let bucketless = net.plan.seats.iter().filter(|seat| seat.bucketless).map(|seat| seat.name.as_str());
    assert!(bucketless.eq(HOMES.map(|(name, _)| name)));
    count_bytes(&net, &ports);
    net.start_seats();
    net
}

/// Makes the routers count the forwarded bytes by remote address.
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

fn degrade_all(quality: Quality) -> Vec<Degraded<'static>> {
    lines().iter().map(|line| line.degrade(quality)).collect()
}

fn print_lines() {
    for (line, (miner, _)) in lines().iter().zip(HOMES) {
        let [out, back] = line.counts();
        println!("  line of {miner}  out: {out:?}  in: {back:?}");
    }
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

async fn miners_behind_routers_are_merged_in_every_window(net: &mut Net) {
    until_all_selected(net, &everybody(), 3).await;
    print_bytes(net.observer.windows());
    for (miner, _) in HOMES {
        let listening = run(&format!("ip netns exec {miner} cat /proc/net/tcp"));
        let open = listening.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A"));
        // All addresses except the loopback interface: 0100007F.
        let open = open.filter(|line| !line.contains(" 0100007F:"));
        assert_eq!(open.count(), 0, "{miner} has an open port:\n{listening}");
    }
}

async fn one_packet_in_twenty_lost_costs_no_contribution(net: &mut Net) {
    let _lines = degrade_all(Quality { loss: 0.05, ..Quality::GOOD });
    until_all_selected(net, &everybody(), 2).await;
}

async fn a_home_line_costs_no_contribution(net: &mut Net) {
    let _line = lines()[0].degrade(HOME_LINE);
    print_lines();
    until_all_selected(net, &everybody(), 3).await;
    print_lines();
    assert!(lines()[0].counts().iter().all(|direction| 0 < direction.lost), "the line is not used");
    print_bytes(net.observer.windows());
}

async fn without_one_receiver_the_others_have_the_contributions(net: &mut Net) {
    net.network.kill(VALIDATORS[0]).await.expect("it ran");
    until_all_selected(net, &everybody(), 2).await;
    net.start(VALIDATORS[0]);
    until_well(net).await;
}

async fn a_store_that_is_away_for_a_window_stops_nobody(net: &mut Net) {
    let before = stakes(net);
    net.network.kill("store").await.expect("it ran");
    let now = last_finalised(&net.observer);
    net.until("a window passes without a store", |seen| now + 2 <= last_finalised(seen)).await;
    net.network.start_store(&net.plan).await.expect("the store starts again");
    until_well(net).await;
    assert_eq!(stakes(net), before, "no account lost stake");
}

async fn validators_that_are_cut_off_for_two_windows_lose_windows_and_nothing_else(net: &mut Net) {
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
    assert_eq!(stakes(net), before, "no account lost stake");
}
