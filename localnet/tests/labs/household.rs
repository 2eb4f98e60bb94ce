//! More miners without buckets behind one router than a validator has places for one address (PROT-34).
//!
//! Runs like `nat.rs`:
//!
//! ```text
//! unshare --net --mount cargo test -p localnet --test labs -- --ignored household::
//! ```

use crate::lab::{
    HOST, address_home, attach, make_bridge, make_router, place_seats, public, run, until_all_selected,
};
use crate::support::{BY_CLOCK, Net, harness, params, wanted};
use libtest_mimic::Trial;
use localnet::{seats::Seats, setup::Wanted};
use protocol::{Role, RunParams, Schedule};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
};

pub fn tests() -> Vec<Trial> {
    harness::ignored(harness::on_their_own!(
        "household",
        [twelve_miners_behind_one_router_send_in_one_window]
    ))
}

/// Number of miners. Each dials over QUIC and TCP at once, and an address has 16 places.
const MINERS: u16 = 12;
const VALIDATORS: [&str; 2] = ["validator-0", "validator-1"];

/// Returns parameters with windows in which two cores train and judge the work of all.
fn long_params() -> RunParams {
    let plain = params(2);
    let (commit_by, step) = (60, 20);
    let (reveal_by, attest_by, vote_by) = (commit_by + step, commit_by + 2 * step, commit_by + 3 * step);
    let blocks_per_window = vote_by + step;
    let schedule = Schedule { commit_by, reveal_by, attest_by, vote_by, blocks_per_window, ..plain.schedule };
    RunParams { schedule, sequences_per_seat: 16, places: MINERS, ..plain }
}

fn validator_index(name: &str) -> u8 {
    if name == VALIDATORS[0] { 11 } else { 12 }
}

async fn twelve_miners_behind_one_router_send_in_one_window(home: &Path) {
    make_bridge();
    VALIDATORS.iter().for_each(|name| attach(name, validator_index(name)));
    attach("router", 31);
    run("ip netns add household");
    run("ip -n household link set lo up");
    run("ip -n router link add lan type veth peer name eth netns household");
    address_home("household", "router", 31);
    make_router("router", false);

    // Every second miner of such a network has no bucket. The others never start.
    let plain = wanted(BY_CLOCK, Seats::honest(2 * MINERS, 2), long_params(), 2).await;
    let wanted = Wanted { nat: true, host: IpAddr::V4(HOST), ..plain };
    let mut net = Net::set_up(home, &wanted).await;
    let namespace =
        |name: &str| if VALIDATORS.contains(&name) { name.to_owned() } else { "household".to_owned() };
    place_seats(&mut net, namespace, |name| public(validator_index(name)));
    net.network.environment.push(("RUST_LOG".into(), "info,mettle_network=debug,network=debug".into()));
    let seats = net.plan.seats.iter().filter(|seat| seat.role == Role::Validator || seat.bucketless);
    let names: Vec<String> = seats.map(|seat| seat.name.clone()).collect();
    names.iter().for_each(|name| net.start(name));

    let miners: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| !VALIDATORS.contains(name)).collect();
    assert_eq!(miners.len(), usize::from(MINERS));
    until_all_selected(&mut net, &miners, 1).await;
    for validator in VALIDATORS {
        let log = std::fs::read_to_string(net.network.log_of(validator)).expect("it has a log");
        let word = |line: &str, key: &str| {
            line.split_whitespace().find_map(|word| word.strip_prefix(key).map(str::to_owned))
        };
        let mut senders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for line in log.lines().filter(|line| line.contains(": a peer's contribution")) {
            if let (Some(window), Some(uid)) = (word(line, "window="), word(line, "uid=")) {
                senders.entry(window).or_default().insert(uid);
            }
        }
        let most = senders.values().map(BTreeSet::len).max().unwrap_or(0);
        // The sixteen places of an address are those of eight miners.
        assert!(8 < most, "{validator}: {senders:?}");
    }
    net.down().await;
}
