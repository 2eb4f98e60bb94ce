//! A miner without a bucket in a network of real processes: it opens no port, and sends its contributions to validators
//! over loopback (PROT-34).

use crate::support::{self, Net, PROGRAM, harness};
use libtest_mimic::Trial;
use protocol::{Role, Uid};
use std::{path::Path, process::Stdio};

pub fn tests() -> Vec<Trial> {
    harness::shared!(
        "peers",
        start,
        [
            a_miner_without_a_bucket_is_merged_in_three_windows_and_paid,
            a_newcomer_takes_part_with_two_commands,
        ]
    )
}

async fn start(home: &Path) -> Net {
    Net::up_with_nat(home, 2, 3).await
}

async fn a_miner_without_a_bucket_is_merged_in_three_windows_and_paid(net: &mut Net) {
    let miner = net.plan.seats.iter().find(|seat| seat.bucketless).expect("one of the two").clone();
    let uid = Uid(miner.uid);
    let before = net.observer.seen.get(&uid).map_or(0, |seen| seen.selected);
    net.until("the miner without a bucket was selected in three windows, and is paid", |seen| {
        let paid = seen.seats_of(Role::Miner).any(|seat| seat.id.uid == uid && 0 < seat.earned);
        paid && seen.seen.get(&uid).is_some_and(|miner| before + 3 <= miner.selected)
    })
    .await;
    let seat = net.chain.seats(net.observer.run.id).await.expect("our chain answers");
    let seat = seat.into_iter().find(|seat| seat.id.uid == uid).expect("it is registered");
    assert!(seat.endpoint.starts_with("p2p://"), "{}", seat.endpoint);
    let inboxes = net
        .plan
        .seats_of(Role::Validator)
        .filter(|validator| net.directory().join(&validator.name).join("data/inbox/runs").is_dir());
    assert_eq!(inboxes.count(), 3, "all three validators were sent contributions");

    let settings = net.directory().join(&miner.name).join("settings.toml");
    let doctor = move || support::mettle(["doctor".as_ref(), "--config".as_ref(), settings.as_os_str()]);
    let ended = tokio::task::spawn_blocking(doctor).await.expect("it ends");
    let said = ended.all();
    assert!(said.contains("3 of 3 validators take contributions and were reached"), "{said}");
}

async fn a_newcomer_takes_part_with_two_commands(net: &mut Net) {
    let home = net.directory().join("newcomer");
    let password = net.directory().join("password-of-newcomer");
    daemon::durable::write_atomic(&password, b"open sesame").expect("the disk has room");
    let (directory, url) = (home.clone(), net.plan.chain_url());
    let init = move || {
        let (directory, password) = (directory.display().to_string(), password.display().to_string());
        let words =
            ["init", "miner", "--yes", "--dir", &directory, "--chain", &url, "--password-file", &password];
        support::mettle(words)
    };
    let ended = tokio::task::spawn_blocking(init).await.expect("it ends");
    assert!(ended.success, "{}", ended.all());
    let uid = ended.out.lines().find_map(|line| line.strip_prefix("uid ")?.parse().ok());
    let uid = Uid(uid.unwrap_or_else(|| panic!("no uid: {}", ended.all())));

    let log = std::fs::File::create(home.join("log.txt")).expect("the disk has room");
    let _miner = tokio::process::Command::new(PROGRAM)
        .args(["role", "miner", "start", "--config"])
        .arg(home.join("settings.toml"))
        .env("RAYON_NUM_THREADS", "1")
        .stdin(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts");
    net.until("the newcomer's contribution is selected", |seen| {
        seen.seen.get(&uid).is_some_and(|seat| 1 <= seat.selected)
    })
    .await;
}
