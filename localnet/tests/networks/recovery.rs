//! State that a miner keeps: over a kill inside a window, over a full disk, and from one run to the next.
//!
//! All tests here run on one network, one after the other, and each can be run alone.

use crate::support::{self, Net, WHEN_IDLE, harness, holds_since, last_finalised, merged, merged_since};
use crate::test_command;
use chain_client::{SubxtChain, keys::Key};
use daemon::Entry;
use libtest_mimic::Trial;
use localnet::{
    layout::ORIGIN,
    network::Network,
    process::{Program, last_lines},
    seats::Seats,
    setup,
};
use protocol::{Role, RunId, RunParams, Schedule, Uid, Window};
use std::{
    path::Path,
    time::{Duration, Instant},
};
use watch::observe::Observer;

pub fn tests() -> Vec<Trial> {
    harness::shared!(
        "recovery",
        start,
        [
            a_miner_killed_inside_a_window_resumes_it_and_is_paid,
            a_full_disk_delays_a_miner_and_loses_nothing,
            a_published_model_starts_another_run,
            a_seat_of_two_ranks_is_paid_and_outlives_a_killed_rank,
            a_seat_trained_by_a_command_is_paid_and_outlives_its_killed_command,
        ]
    )
}

async fn start(home: &Path) -> Net {
    Net::start_with(home, WHEN_IDLE, Seats::honest(1, 1), long_params(), 2).await
}

/// Returns parameters with long windows: a miner that restarts in the middle of one still finishes it.
fn long_params() -> RunParams {
    let mut params = support::params(2);
    let Schedule { blocks_per_window, commit_by, reveal_by, attest_by, vote_by, .. } = &mut params.schedule;
    for block in [blocks_per_window, commit_by, reveal_by, attest_by, vote_by] {
        *block += 40;
    }
    RunParams { sequences_per_seat: 96, ..params }
}

/// Returns the entries of a node's journal from `offset` on.
fn journal(net: &Net, name: &str, offset: u64) -> (Vec<Entry>, u64) {
    let path = net.directory().join(name).join("data").join("journal.jsonl");
    daemon::journal::read_from(&path, offset).expect("a journal")
}

/// Waits until the miner has written a snapshot inside a window, so that it trains.
async fn until_inside_a_window(net: &Net, name: &str) {
    let inside = net.directory().join(name).join("data").join("training.snapshot");
    let began = Instant::now();
    while !inside.exists() {
        assert!(began.elapsed() < Duration::from_secs(240), "it does not train{}", net.last_lines());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for a merge from window `from` on that includes the contribution of `uid`.
async fn merged_with(net: &mut Net, uid: Uid, from: u32) -> Window {
    for window in from..from + 10 {
        net.until(&format!("window {window} is over"), |seen| window <= last_finalised(seen)).await;
        let view = net.chain.window(net.observer.run.id, Window(window)).await.expect("our chain answers");
        let view = view.expect("the window is kept");
        let is_merged = view.outcome.is_some_and(|outcome| merged(&outcome));
        let selection = view.selection.filter(|_| is_merged);
        if selection.is_some_and(|all| all.selected.iter().any(|one| one.uid == uid)) {
            return Window(window);
        }
    }
    panic!("no contribution of seat {} was merged{}", uid.0, net.last_lines());
}

/// Changes the settings of the miner in `home`: small steps, time before the deadline for a busy machine, and
/// `beside`.
fn set_training(home: &Path, beside: &str) {
    let path = home.join("settings.toml");
    let text = std::fs::read_to_string(&path).expect("its settings");
    let (before, _) = text.split_once("[train]").expect("a miner's settings");
    let train = format!("{before}[train]\nbatch_sequences = 4\ncommit_margin_blocks = 20\n{beside}\n");
    std::fs::write(&path, train).expect("its settings");
}

async fn a_miner_killed_inside_a_window_resumes_it_and_is_paid(net: &mut Net) {
    let (name, uid) = ("miner-0", net.uid("miner-0"));
    set_training(&net.directory().join(name), "snapshot_every_steps = 1");
    net.network.kill(name).await.expect("the miner ran");
    net.start(name);

    let all_earned = |seen: &Observer| seen.seats_of(Role::Miner).map(|seat| seat.earned).sum::<u128>();
    let mut earned = 0;
    for attempt in 0.. {
        assert!(attempt < 10, "no killed window was finished{}", net.last_lines());
        until_inside_a_window(net, name).await;
        let (_, offset) = journal(net, name, 0);
        earned = all_earned(&net.observer);
        net.network.kill(name).await.expect("the miner ran");
        net.start(name);

        let open = net.observer.run.params.schedule.window_at(net.chain.heads().borrow().block);
        let open = open.expect("the run has started");
        net.until("the window is finalised", |seen| open.0 <= last_finalised(seen)).await;
        // The miner resumed with some sequences done, finished the window and was selected. If the kill was too late,
        // another window is tried.
        let resumed = journal(net, name, offset).0.into_iter().find_map(|entry| match entry {
            Entry::Resumed { window, sequences, .. } if 0 < sequences => Some((window, sequences)),
            _ => None,
        });
        let Some((window, before)) = resumed else { continue };
        let trained = journal(net, name, offset).0.into_iter().find_map(|entry| match entry {
            Entry::Trained { window: of, sequences, .. } if of == window => Some(sequences),
            _ => None,
        });
        net.until("that window is finalised", |seen| window.0 <= last_finalised(seen)).await;
        let view = net.chain.window(net.observer.run.id, window).await.expect("our chain answers");
        let selection = view.and_then(|view| view.selection);
        let selected = selection.is_some_and(|all| all.selected.iter().any(|one| one.uid == uid));
        println!("window {}: killed after {before} sequences, {trained:?} in the end", window.0);
        if selected && trained.is_some_and(|trained| before < trained) {
            break;
        }
    }
    net.until("it is paid", |seen| earned < all_earned(seen)).await;
}

/// The miner restarts without space for the model that it joins with, then for its first snapshot. Later it lacks
/// space for the snapshot of a contribution, then for the model, until space is freed. It remains one process.
async fn a_full_disk_delays_a_miner_and_loses_nothing(net: &mut Net) {
    set_training(&net.directory().join("miner-0"), "");
    let (name, uid) = ("miner-0", net.uid("miner-0"));
    let home = net.directory().join(name);
    net.network.kill(name).await.expect("the miner ran");
    // A miner killed between two renames has only the backup.
    let length = |file: &str| {
        let path = home.join("data").join(file);
        let before = home.join("data").join(format!("{file}.before"));
        std::fs::metadata(&path).or_else(|_| std::fs::metadata(&before)).expect(file).len()
    };
    let (model, snapshot) = (length("model.state"), length("miner.snapshot"));
    assert!(2 * model < snapshot, "{model} {snapshot}");
    for file in ["model.state", "miner.snapshot", "training.snapshot"] {
        daemon::durable::DurableFile::new(home.join("data").join(file)).remove();
    }

    // To the process, a limit on the length of files is a full disk, if the limit's signal is ignored.
    let log = net.directory().join("full.txt");
    let limited = format!("trap '' XFSZ; exec prlimit --fsize={}: \"$@\"", model / 2);
    let mut arguments: Vec<std::ffi::OsString> =
        vec!["-c".into(), limited.into(), "sh".into(), support::PROGRAM.into()];
    arguments.extend(["role", "miner", "start", "--with-parent", "--config"].map(Into::into));
    arguments.push(home.join("settings.toml").into());
    let program = Program {
        name: "full".into(),
        executable: "/bin/sh".into(),
        arguments,
        environment: vec![("RAYON_NUM_THREADS".into(), "1".into())],
        log: log.clone(),
        has_children: false,
    };
    let mut miner = program.start().expect("it starts");
    let id = miner.id().expect("it runs");
    let room = |bytes: &str| {
        let done = std::process::Command::new("prlimit")
            .args(["--pid", &id.to_string(), &format!("--fsize={bytes}:")])
            .status();
        assert!(done.expect("prlimit is part of every Linux").success(), "{bytes}");
    };
    let logs = |words: &str, of: &str| {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        said.lines()
            .any(|line| line.contains(words) && line.contains(of) && line.contains("bytes are needed"))
    };
    let no_room = "the disk is full: make room";
    // It joins from a checkpoint, if one has been voted for.
    let joins = |_: &Observer| logs(no_room, "joining-") || logs(no_room, "model.state");
    net.until("it finds no room for what it joins with", joins).await;
    // The list of outcomes in the file grows with the window.
    room(&(model + model / 8).to_string());
    net.until("it has joined, and finds no room for its first snapshot", |_| logs(no_room, "miner.snapshot"))
        .await;
    room("unlimited");
    let from = last_finalised(&net.observer) + 1;
    let committed = |seen: &Observer| seen.seen.get(&uid).map_or(0, |seat| seat.committed);
    let before = committed(&net.observer);
    net.until("it mines", |seen| before < committed(seen) && from <= last_finalised(seen)).await;

    room(&(snapshot - 1).to_string());
    net.until("a window passes in which the contribution cannot be kept", |seen| {
        seen.missed.iter().any(|(_, by, reason)| by == name && reason.contains("the disk was full"))
    })
    .await;
    room(&(model / 2).to_string());
    // Use the chain's own clock: the observer may be a window behind.
    let open = net.observer.run.params.schedule.window_at(net.chain.heads().borrow().block);
    let open = open.expect("the run has started").0;
    net.until("two windows pass, and the model cannot be kept", |seen| open + 2 <= last_finalised(seen))
        .await;
    let held = |seen: &Observer| seen.held.get(name).and_then(|held| held.keys().next_back().copied());
    assert!(held(&net.observer).is_some_and(|held| held.0 <= open + 1), "{:?}", held(&net.observer));
    assert!(miner.ended().expect("our child can be watched").is_none(), "{}", last_lines(&log, 8));

    room("unlimited");
    let now = last_finalised(&net.observer);
    net.until("it holds the model again, and commits", |seen| {
        let current = seen.current.as_ref().filter(|view| now < view.window.0);
        holds_since(seen, name, now)
            && current.is_some_and(|view| view.commitments.iter().any(|(of, _)| *of == uid))
    })
    .await;
    let now = last_finalised(&net.observer);
    net.until("a window is merged", |seen| 0 < merged_since(seen, now + 1)).await;
    assert!(miner.ended().expect("our child can be watched").is_none(), "{}", last_lines(&log, 8));
    assert!(net.observer.lineage_agreed());
    let said = std::fs::read_to_string(&log).expect("its log");
    let times = |words: &str| said.lines().filter(|line| line.contains(words)).count();
    assert!(
        (1..20).contains(&times("the disk is full: make room")),
        "it says so, and not all the time:\n{said}"
    );
    assert!(0 < times("the disk has space again"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    miner.kill().await.expect("our child");
}

/// A published model is exported in the Hugging Face format without a seat or a key. Then it becomes the first model
/// of another run on the same chain, and trains there.
async fn a_published_model_starts_another_run(net: &mut Net) {
    net.until("a checkpoint is voted, and its model judged", |seen| {
        seen.run.checkpoint.is_some_and(|checkpoint| seen.held_out_loss(checkpoint.window).is_some())
    })
    .await;
    let window = net.observer.run.checkpoint.expect("just seen").window;
    let loss = |seen: &Observer, window: Window| seen.held_out_loss(window).expect("just seen").loss;
    let loss_before = loss(&net.observer, window);
    let (model, url) = (net.directory().join("model"), net.plan.chain_url());
    let run_to_end = async |arguments: Vec<String>| {
        let ended = tokio::task::spawn_blocking(move || support::mettle(arguments)).await.expect("it ends");
        assert!(ended.success, "{}", ended.all());
        ended.out
    };
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let export = format!(
        "model export --published --chain {url} --run 0 --window {} --out {}",
        window.0,
        model.display()
    );
    let said = run_to_end(words(&export)).await;
    let root = said.lines().find_map(|line| line.strip_prefix("weights root ")).expect("it says").to_owned();

    // The owner of the second run publishes in the bucket of the first run's owner.
    let second = net.directory().join("second");
    std::fs::create_dir(&second).expect("a directory");
    let file = |name: &str, text: String| {
        let path = second.join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let (access_key, secret_key) = net.plan.origin_keys.clone();
    let owner = file(
        "owner.toml",
        format!(
            "chain = \"{url}\"\nkey = \"//Alice\"\n[store]\nendpoint = \"{}\"\nbucket = \"{ORIGIN}\"\naccess_key = \"{access_key}\"\nsecret_key = \"{secret_key}\"\n",
            net.plan.store_url()
        ),
    );
    let params = file("params.json", serde_json::to_string(&long_params()).expect("plain data"));
    let terms = r#"{ "active_set_max": 16, "absence_windows": 6, "validator_stake_min": "100", "miner_stake_min": "1" }"#;
    let terms = file("terms.json", terms.into());
    let data = net.plan.dataset.clone().expect("it is on this machine");
    let create = format!(
        "run create --yes --config {owner} --name again --weights {} --dataset {} --params {params} --terms {terms} --origin {}",
        model.display(),
        data.display(),
        net.plan.bucket_url(ORIGIN)
    );
    let said = run_to_end(words(&create)).await;
    let run = RunId(1);
    assert!(said.contains("run 1, first window at block"), "{said}");
    assert_eq!(net.chain.run(run).await.expect("our chain answers").theta0.to_string(), root);

    // Move the processes to the new run.
    for seat in &net.plan.seats {
        net.network.kill(&seat.name).await.expect("it ran");
    }
    let owner = Key::dev("//Alice").expect("a development key");
    let owner = SubxtChain::connect(&url, Some(owner)).await.expect("our chain answers");
    let mut network = Network::new(&second, support::PROGRAM.into());
    let mut plan = net.plan.clone();
    plan.run = run.0;
    for at in 0..plan.seats.len() {
        let seat = plan.seats[at].clone();
        plan.seats[at].uid = setup::add_seat(&second, &plan, &owner, &seat).await.expect("a seat");
        if seat.role == Role::Miner {
            set_training(&second.join(&seat.name), "");
        }
        network.start_seat(&plan, &plan.seats[at]).expect("it starts");
    }
    let mut next = net.with(network, plan).await;
    next.until("a window of the new run is merged, and the model that it opened with is judged", |seen| {
        0 < merged_since(seen, 0) && !seen.held_out_losses().is_empty()
    })
    .await;
    assert!(next.observer.lineage_agreed());
    // The same weights on the same text: windows without a contribution in time change nothing. A busy machine may
    // judge none before the first merge, and the loss continues from there.
    let (judged, _) = next.observer.held_out_losses()[0];
    let loss_now = loss(&next.observer, judged);
    let lineages = &next.observer.lineages;
    if lineages.get(&judged) == lineages.values().next() {
        assert!((loss_now - loss_before).abs() < 1e-6, "{loss_before} {loss_now}");
    } else {
        assert!(loss_now < loss_before + 0.5, "{loss_before} {loss_now}");
    }

    // Exported from the new run, the first model has the same weights.
    let back = net.directory().join("back");
    let export =
        format!("model export --published --chain {url} --run 1 --window 0 --out {}", back.display());
    let said = run_to_end(words(&export)).await;
    assert!(said.contains(&format!("weights root {root}")), "{said}");
    next.down().await;
}

/// A seat of two processes, one of which is killed inside a window.
async fn a_seat_of_two_ranks_is_paid_and_outlives_a_killed_rank(net: &mut Net) {
    let (name, uid) = ("miner-0", net.uid("miner-0"));
    set_training(&net.directory().join(name), "micro_batch_sequences = 1\nranks = 2");
    net.network.kill(name).await.expect("the miner ran");
    let (_, offset) = journal(net, name, 0);
    net.start(name);
    let all_earned = |seen: &Observer| seen.seats_of(Role::Miner).map(|seat| seat.earned).sum::<u128>();
    let earned = all_earned(&net.observer);
    net.until("it is paid", |seen| earned < all_earned(seen)).await;
    let trained = |net: &Net, from: u64| {
        let entries = journal(net, name, from).0.into_iter();
        entries.filter(|entry| matches!(entry, Entry::Trained { .. })).count()
    };
    assert!(0 < trained(net, offset));

    // Repeat until a kill falls into a step: its window is missed, and the next one is trained.
    let inside = |net: &Net, from: u64| {
        journal(net, name, from).0.into_iter().find_map(|entry| match entry {
            Entry::Missed { reason, .. } if reason.contains("rank 1") => Some(reason),
            _ => None,
        })
    };
    let heads = net.chain.heads();
    let of_window = net.observer.run.params.schedule.blocks_per_window;
    for attempt in 0.. {
        assert!(attempt < 10, "no kill fell into a window's training{}", net.last_lines());
        // Each window of this seat has much the same timing, so the kill moves to another part of the next one.
        let at = heads.borrow().block.0 + attempt * of_window / 10;
        net.until("its part of the window", |_| at <= heads.borrow().block.0).await;
        let (_, offset) = journal(net, name, 0);
        kill_ranks();
        let open = net.observer.run.params.schedule.window_at(net.chain.heads().borrow().block);
        let open = open.expect("the run has started");
        net.until("the window is over", |seen| open.0 <= last_finalised(seen)).await;
        let Some(reason) = inside(net, offset) else { continue };
        println!("missed: {reason}");
        assert!(reason.contains("the next window starts the ranks afresh"), "{reason}");
        break;
    }
    let (_, offset) = journal(net, name, 0);
    let (finalised, earned) = (last_finalised(&net.observer), all_earned(&net.observer));
    net.until("two more windows are over, and it is paid", |seen| {
        finalised + 2 <= last_finalised(seen) && earned < all_earned(seen)
    })
    .await;
    assert!(0 < trained(net, offset), "seat {} trains on{}", uid.0, net.last_lines());
}

/// The command is this test program, by its `main`. Without training ahead, each kill of it costs a window.
async fn a_seat_trained_by_a_command_is_paid_and_outlives_its_killed_command(net: &mut Net) {
    let (name, uid) = ("miner-0", net.uid("miner-0"));
    let program = serde_json::json!(test_command::program(""));
    let settings = format!(
        "ahead = 0.0\nsnapshot_every_steps = 4\nengine = \"command\"\n[train.command]\nprogram = {program}"
    );
    set_training(&net.directory().join(name), &settings);
    net.network.kill(name).await.expect("the miner ran");
    let (_, offset) = journal(net, name, 0);
    let schedule = net.observer.run.params.schedule;
    let open = schedule.window_at(net.chain.heads().borrow().block).expect("the run has started");
    net.start(name);

    // This process of the miner has no other engine.
    let trained = |net: &Net, window: Window| {
        let mut entries = journal(net, name, offset).0.into_iter();
        entries.any(|entry| matches!(entry, Entry::Trained { window: of, .. } if of == window))
    };
    let first = merged_with(net, uid, open.0 + 1).await;
    assert!(trained(net, first), "window {}{}", first.0, net.last_lines());

    until_inside_a_window(net, name).await;
    let (killed, known) = (command_process().await, net.observer.missed.len());
    kill(&[killed]);
    let given_up = |seen: &Observer| {
        let mut missed = seen.missed[known..].iter();
        missed
            .find(|(_, by, reason)| by == name && reason.contains("training was given up"))
            .map(|(window, _, reason)| (*window, reason.clone()))
    };
    net.until("the window is given up", |seen| given_up(seen).is_some()).await;
    let (window, reason) = given_up(&net.observer).expect("just seen");
    println!("window {}: {reason}", window.0);
    assert!(reason.contains("the training command failed"), "{reason}");

    let again = merged_with(net, uid, window.0 + 1).await;
    assert!(trained(net, again), "window {}{}", again.0, net.last_lines());
    assert_ne!(command_process().await, killed);

    // A busy machine may be late.
    let blameless = ["not-observed", "missing", "late"];
    let mut faults =
        net.observer.faults.iter().filter(|fault| {
            fault.uid == uid.0 && first.0 <= fault.window && !blameless.contains(&&*fault.label)
        });
    assert_eq!(faults.next(), None);
    let epoch = first.epoch(net.observer.run.params.epoch_windows);
    loop {
        let now = last_finalised(&net.observer);
        let slips = net.chain.payslips(net.observer.run.id, uid).await.expect("our chain answers");
        if slips.iter().any(|slip| epoch <= slip.epoch && 0 < slip.amount) {
            break;
        }
        assert!(now < again.0 + 8, "it is not paid: {slips:?}{}", net.last_lines());
        net.until("another window is over", |seen| now < last_finalised(seen)).await;
    }
}

/// Returns the process of the command, once it exists.
async fn command_process() -> i32 {
    let this = std::env::current_exe().expect("the path of this program").display().to_string();
    let began = Instant::now();
    loop {
        let found = processes(|words| {
            words.first() == Some(&this.as_bytes()) && words.get(1) == Some(&test_command::TEST.as_bytes())
        });
        if let [process] = found[..] {
            return process;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "processes of the command: {found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Kills all processes that are a rank of a miner of this test. No other network has any.
fn kill_ranks() {
    kill(&processes(|words| {
        words.first() == Some(&support::PROGRAM.as_bytes()) && words.last() == Some(&&b"worker"[..])
    }));
}

/// Returns the processes whose command line `is_wanted`.
fn processes(is_wanted: impl Fn(&[&[u8]]) -> bool) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").expect("Linux").filter_map(|entry| {
        let id: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let words = std::fs::read(format!("/proc/{id}/cmdline")).ok()?;
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
        is_wanted(&words).then_some(id)
    });
    processes.collect()
}

fn kill(processes: &[i32]) {
    for id in processes {
        let _ = std::process::Command::new("kill").args(["-9", &id.to_string()]).status();
    }
}
