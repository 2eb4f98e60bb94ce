//! A miner without a bucket in a network of real processes: it opens no port, and sends its contributions to validators
//! over loopback (PROT-34).

#[allow(dead_code, reason = "shared with the other tests of whole networks")]
mod support;

use protocol::{Role, Uid, Window};
use std::sync::LazyLock;
use support::{Net, Shared, last_finalised};

static NETWORK: LazyLock<Shared> =
    LazyLock::new(|| Shared::start("peers", async |home| Net::up_with_nat(home, 2, 3).await));

/// The windows from `from` on in which the contribution of `uid` was selected.
async fn selected_since(net: &Net, uid: Uid, from: u32) -> u32 {
    let mut count = 0;
    for (window, _) in net.observer.outcomes.range(Window(from)..) {
        let view = net.chain.window(net.observer.run.id, *window).await.expect("our chain answers");
        let selection = view.and_then(|view| view.selection);
        count += u32::from(selection.is_some_and(|all| all.selected.iter().any(|one| one.uid == uid)));
    }
    count
}

#[test]
fn a_miner_without_a_bucket_is_merged_in_three_windows_and_paid() {
    NETWORK.run(async |net| {
        let miner = net.plan.seats.iter().find(|seat| seat.bucketless).expect("one of the two").clone();
        let (uid, from) = (Uid(miner.uid), last_finalised(&net.observer));
        net.until("the miner without a bucket was selected in three windows, and is paid", |seen| {
            let paid = seen.seats_of(Role::Miner).any(|seat| seat.id.uid == uid && 0 < seat.earned);
            paid && seen.seen.get(&uid).is_some_and(|miner| 3 <= miner.selected)
        })
        .await;
        assert!(3 <= selected_since(net, uid, from).await);
        let seat = net.chain.seats(net.observer.run.id).await.expect("our chain answers");
        let seat = seat.into_iter().find(|seat| seat.id.uid == uid).expect("it is registered");
        assert!(seat.endpoint.starts_with("p2p://"), "{}", seat.endpoint);
        let inboxes = net
            .plan
            .seats_of(Role::Validator)
            .filter(|validator| net.directory().join(&validator.name).join("data/inbox/runs").is_dir());
        assert_eq!(inboxes.count(), 3, "all three validators were sent contributions");
    });
}
