//! A miner without a bucket in a network of real processes: it opens no port, and sends its contributions to validators
//! over loopback (PROT-34).

#[allow(dead_code, reason = "shared with the other tests of whole networks")]
mod support;

use chain_client::{
    Call, Chain as _, SubxtChain,
    keys::{Key, KeyPassword, KeySource, Prompt},
};
use localnet::setup;
use node::config::{File, PeerFile};
use protocol::{Role, RunId, Uid};
use std::{net::TcpListener, path::Path, sync::LazyLock};
use support::{Net, Shared, last_finalised};

static NETWORK: LazyLock<Shared> =
    LazyLock::new(|| Shared::start("peers", async |home| Net::up(home, 2, 3).await));

/// Changes the settings of a seat.
fn change(home: &Path, change: impl FnOnce(&mut File)) {
    let path = home.join("settings.toml");
    let mut settings: File = toml::from_str(&std::fs::read_to_string(&path).expect("written")).expect("TOML");
    change(&mut settings);
    std::fs::write(&path, toml::to_string(&settings).expect("settings are TOML")).expect("a file");
}

/// Windows from `from` on in which the contribution of `uid` was selected.
async fn selected_since(net: &Net, uid: Uid, from: u32) -> u32 {
    let mut count = 0;
    for (window, _) in net.observer.outcomes.range(protocol::Window(from)..) {
        let view = net.chain.window(net.observer.run.id, *window).await.expect("our chain answers");
        let selection = view.and_then(|view| view.selection);
        count += u32::from(selection.is_some_and(|all| all.selected.iter().any(|one| one.uid == uid)));
    }
    count
}

#[test]
fn a_miner_without_a_bucket_is_merged_in_three_windows_and_paid() {
    NETWORK.run(async |net| {
        let directory = net.directory();
        let validators: Vec<String> =
            net.plan.seats_of(Role::Validator).map(|seat| seat.name.clone()).collect();
        for name in &validators {
            net.network.kill(name).await.expect("the validator ran");
            let port =
                TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
            change(&directory.join(name), |settings| {
                settings.peer = Some(PeerFile { listen: Some(port), announce: None });
            });
            net.start(name);
        }

        // A seat as any other, but for its endpoint and its settings.
        let index = u16::try_from(net.plan.seats_of(Role::Miner).count()).expect("few miners");
        let mut seat = setup::new_seat(Role::Miner, index).expect("a seat");
        net.plan.seats.push(seat.clone());
        let owner = Key::dev("//Alice").expect("a development key");
        let owner = SubxtChain::connect(&net.plan.chain_url(), Some(owner)).await.expect("our chain answers");
        seat.uid = setup::add_seat(&directory, &net.plan, &owner, &seat).await.expect("a seat");
        *net.plan.seats.last_mut().expect("just pushed") = seat.clone();
        net.locked.write_plan(net.plan.clone()).expect("the plan is written");
        let home = directory.join(&seat.name);
        let endpoint = node::peers::endpoint(&home.join("data")).expect("a node key");
        let password =
            KeyPassword::resolve("the seat's keys", Some(&home.join("password")), None, Prompt::Never)
                .expect("set");
        let hotkey = KeySource::File(home.join("hotkey.json")).open(|_| Ok(password)).expect("its key");
        let hotkey =
            SubxtChain::connect(&net.plan.chain_url(), Some(hotkey)).await.expect("our chain answers");
        let call = Call::SetEndpoint { run: RunId(net.plan.run), endpoint };
        hotkey.submit(call).await.expect("the registry takes the endpoint of a peer");
        change(&home, |settings| settings.store = None);
        net.network.start_seat(&net.plan, &seat).expect("the miner starts");
        net.observe_again().await;

        let (uid, from) = (Uid(seat.uid), last_finalised(&net.observer));
        net.until("the miner without a bucket was selected in three windows, and is paid", |seen| {
            let paid = seen.seats_of(Role::Miner).any(|seat| seat.id.uid == uid && 0 < seat.earned);
            paid && seen.seen.get(&uid).is_some_and(|miner| 3 <= miner.selected)
        })
        .await;
        assert!(3 <= selected_since(net, uid, from).await);
        let inboxes = validators.iter().filter(|name| {
            let inbox = directory.join(name).join("data/inbox/runs");
            inbox.is_dir()
        });
        assert!(1 <= inboxes.count(), "what was merged came through an inbox");
    });
}
