//! The commands as users enter them, against an embedded chain.

use chain_client::{
    Amount, Call, Chain as _, SubxtChain,
    account::{self, RunRequest},
    keys::{Key, address},
};
use clap::Parser;
use daemon::exit;
use ed25519_dalek::Signer as _;
use embedded_chain::{Config, EmbeddedChain, Sealing};
use mettle::{cli::Cli, output::Output};
use protocol::{
    Block, Digest, Role, RunId, RunParams, Schedule, Terms, Uid, Window, keys,
    params::Permille,
    reveal,
    view::{PendingChange, SeatStatus, Verdict, Vote},
};
use s3_server::{BucketConfig, S3Server, ServerConfig};
use serde_json::Value;
use std::{path::Path, time::Duration};
use store::{Credentials, S3Settings, S3Store, Store as _};

/// Output and exit of a command.
#[derive(Debug)]
struct Ended {
    out: String,
    err: String,
    done: anyhow::Result<()>,
}

impl Ended {
    #[track_caller]
    fn succeeds(&self) -> &Ended {
        if let Err(error) = &self.done {
            panic!("{error:#}\n{}{}", self.err, self.out);
        }
        self
    }

    /// Asserts that this is printed, on either stream or as the error.
    #[track_caller]
    fn prints(&self, part: &str) -> &Ended {
        let error = self.done.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
        let all = format!("{}{}{error}", self.err, self.out);
        assert!(all.contains(part), "no `{part}` in:\n{all}");
        self
    }

    #[track_caller]
    fn ends_with_code(&self, code: u8) -> &Ended {
        let error = self.done.as_ref().expect_err("it fails");
        assert_eq!(exit::code(error), code, "{error:#}");
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{}", self.out);
        assert!(self.err.is_empty(), "{}", self.err);
        serde_json::from_str(&self.out).unwrap()
    }
}

/// A chain with a run on it, which //Alice owns.
struct Net {
    chain: EmbeddedChain,
    alice: SubxtChain,
    run: RunId,
    schedule: Schedule,
}

const STAKE: Amount = Amount::mtl(10);

fn dev(path: &str) -> Key {
    Key::dev(path).unwrap()
}

impl Net {
    /// Creates windows of 20 blocks; stake unbonds in one window. A block is made with each call and on the test's
    /// request, so that a window lasts as long as the test needs.
    async fn new() -> Net {
        let config = Config { sealing: Sealing::Instant, ..Config::default() };
        let chain = EmbeddedChain::start(config).await.unwrap();
        let alice = SubxtChain::connect(&chain.url(), Some(dev("//Alice"))).await.unwrap();
        let schedule = Schedule {
            start: Block(alice.heads().borrow().block.0 + 150),
            blocks_per_window: 20,
            commit_by: 10,
            reveal_by: 12,
            attest_by: 14,
            vote_by: 16,
        };
        let terms = Terms {
            unbonding_windows: 1,
            validator_stake_min: Amount::mtl(1).0,
            miner_stake_min: Amount::mtl(1).0,
            ..Terms::default()
        };
        let params = RunParams {
            schedule,
            epoch_windows: 4,
            reveal_windows: 2,
            localnet: true,
            min_contributions: 1,
            ..RunParams::default()
        };
        let wish = RunRequest {
            params,
            terms,
            spec: Digest::of(b"spec"),
            manifest: Digest::of(b"manifest"),
            theta0: Digest::of(b"theta0"),
            origin: "http://127.0.0.1:9000/origin".into(),
        };
        let run = account::create_run(&alice, &wish).await.unwrap().id;
        Net { chain, alice, run, schedule }
    }

    /// Enters a command, and `typed` as its answer; `None` means no terminal.
    async fn enter(&self, role: Role, line: &str, typed: Option<&str>) -> Ended {
        let url = self.chain.url();
        let line = line.replacen("register ", &format!("register {role} "), 1);
        let words = ["mettle"].into_iter().chain(line.split_whitespace());
        let needs_chain = !line.starts_with("keys ");
        let words = words.chain(["--chain", &url].into_iter().filter(|_| needs_chain));
        let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut ask = || Ok(typed.map(str::to_owned));
        let mut output = Output::new(cli.json(), &mut out, &mut err, &mut ask);
        let done = cli.execute(&mut output).await;
        output.finish(&done).unwrap();
        // The command had a connection of its own.
        self.catch_up().await;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ended { out: text(out), err: text(err), done }
    }

    async fn miner(&self, line: &str) -> Ended {
        self.enter(Role::Miner, line, None).await
    }

    async fn validator(&self, line: &str) -> Ended {
        self.enter(Role::Validator, line, None).await
    }

    /// Enters a command, and finalises blocks until it ends.
    async fn examine(&self, line: &str) -> Ended {
        let blocks = async {
            loop {
                tokio::time::sleep(Duration::from_millis(200)).await;
                self.chain.seal_now().await.unwrap();
            }
        };
        tokio::select! {
            ended = self.miner(line) => ended,
            () = blocks => unreachable!("it goes on"),
        }
    }

    async fn registered(&self, role: Role, coldkey: &str, hotkey: &str) -> Uid {
        let line = format!(
            "register --yes --coldkey {coldkey} --key {hotkey} --stake 10 --endpoint http://127.0.0.1:9000/seat"
        );
        self.enter(role, &line, None).await.succeeds().prints("uid ");
        self.seat(hotkey).await.seat.id.uid
    }

    async fn seat(&self, hotkey: &str) -> SeatStatus {
        let hotkey = dev(hotkey).hotkey();
        let seats = self.alice.seat_statuses(self.run, Uid(0), 100).await.unwrap();
        seats.into_iter().find(|seat| seat.seat.hotkey == hotkey).expect("the seat is there")
    }

    async fn free(&self, key: &str) -> Amount {
        self.alice.balance(&dev(key).account()).await.unwrap().free
    }

    /// Makes blocks until this number of windows has opened.
    async fn windows_later(&self, windows: u32) {
        let now = self.schedule.window_at(Block(self.chain.best().number));
        let then = Window(now.map_or(0, |now| now.0 + 1) + windows - 1);
        // A window's first block applies the changes.
        let block = Block(self.schedule.opens_at(then).0 + 2);
        while self.chain.best().number < block.0 {
            self.chain.seal_now().await.unwrap();
        }
        self.catch_up().await;
    }

    /// Makes blocks up to this offset of a future window.
    async fn go_to(&self, window: u32, offset: u32) {
        let block = Block(self.schedule.opens_at(Window(window)).0 + offset);
        assert!(self.chain.best().number <= block.0, "block {} is past", block.0);
        while self.chain.best().number < block.0 {
            self.chain.seal_now().await.unwrap();
        }
        self.catch_up().await;
    }

    /// Plays one epoch as the only miner and the only validator, which gives all weight to the miner. Of its four
    /// windows, the first is merged. Ends when the epoch is paid.
    async fn play_epoch(&self, validator: &str, miner_key: &str, miner: Uid) {
        let key = dev(validator);
        let hotkey = key.hotkey();
        let chain = SubxtChain::connect(&self.chain.url(), Some(key)).await.unwrap();
        let (run, window, salt, weights) = (self.run, Window(0), [5; 32], vec![(miner, u16::MAX)]);
        self.go_to(0, 1).await;
        let miner_chain = SubxtChain::connect(&self.chain.url(), Some(dev(miner_key))).await.unwrap();
        miner_chain.submit(Call::Commit { run, window, digest: Digest::of(b"work") }).await.unwrap();
        self.go_to(0, self.schedule.commit_by + 1).await;
        let verdicts = vec![(miner, Verdict::Valid)];
        let attest = Call::Attest { run, window, verdicts, next_salt: Digest::of(b"salt") };
        chain.submit(attest).await.unwrap();
        self.go_to(0, self.schedule.attest_by + 1).await;
        let vote = Vote { update: Digest::of(b"update"), state_root: None };
        chain.submit(Call::Vote { run, window, vote }).await.unwrap();
        let hash = reveal::commitment(&weights, &salt, &hotkey);
        chain.submit(Call::CommitWeights { run, epoch: 0, hash }).await.unwrap();
        self.go_to(4, 1).await;
        chain.submit(Call::RevealWeights { run, epoch: 0, weights, salt }).await.unwrap();
        self.go_to(6, 2).await;
    }

    /// Waits until Alice's client has seen the latest final block.
    async fn catch_up(&self) {
        let last = Block(self.chain.finalised().number);
        self.alice.heads().wait_for(|head| head.block >= last).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seat_is_registered_staked_and_given_up_and_its_stake_returns() {
    let net = Net::new().await;
    let price = Amount(net.alice.status(net.run).await.unwrap().miners.price);
    let uid = net.registered(Role::Miner, "//Bob", "//Bob//hot").await;
    let again =
        "register --yes --coldkey //Bob --key //Bob//hot --stake 10 --endpoint http://127.0.0.1:9000/seat";
    net.miner(again).await.succeeds().prints("has its seat already").prints(&format!("uid {uid}"));
    assert!(Amount::ZERO < price);

    net.miner("stake --yes --coldkey //Bob --key //Bob//hot --amount 5")
        .await
        .succeeds()
        .prints("has 15 MTL at stake");
    assert_eq!(net.seat("//Bob//hot").await.seat.stake, Amount::mtl(15).0);
    let taken = net.miner("unstake --yes --coldkey //Bob --key //Bob//hot --amount 4").await;
    taken
        .succeeds()
        .prints("falls from 15 MTL to 11 MTL")
        .prints("1 window, about")
        .prints("4 MTL is free in window");
    assert_eq!(net.seat("//Bob//hot").await.seat.stake, Amount::mtl(11).0);
    net.miner("unstake --yes --coldkey //Bob --uid 0 --amount 10.5")
        .await
        .ends_with_code(1)
        .prints("at most 10 MTL");
    net.miner("withdraw --yes --coldkey //Bob").await.succeeds().prints("nothing to withdraw yet: of 4 MTL");
    net.miner("status --key //Bob//hot").await.succeeds().prints("4.00 MTL unbonding, free in window");

    net.miner("unstake --all --yes --coldkey //Bob --uid 0")
        .await
        .succeeds()
        .prints("is given up with window");
    let held = |net: &Net| {
        let alice = net.alice.clone();
        async move { alice.balance(&dev("//Bob").account()).await.unwrap().held }
    };
    assert_eq!(held(&net).await, Amount::mtl(15), "nothing is free yet");
    net.windows_later(4).await;
    assert!(net.alice.seats(net.run).await.unwrap().is_empty(), "the seat is gone");
    net.miner("status --key //Bob//hot")
        .await
        .ends_with_code(1)
        .prints("has no seat")
        .prints("the next costs");
    let gone = net.miner("status --uid 6").await;
    gone.ends_with_code(1).prints("there is no uid 6 in run 0");
    assert!(!gone.out.contains("seats are taken"), "{}", gone.out);
    let json = net.miner("status --uid 6 --json").await.ends_with_code(1).json();
    assert_eq!((&json["result"]["seat"], &json["error"]["exit_code"]), (&Value::Null, &1.into()));
    let before = net.free("//Bob").await;
    net.miner("withdraw --yes --coldkey //Bob").await.succeeds().prints("15 MTL is free");
    assert_eq!(held(&net).await, Amount::ZERO);
    assert!(before.saturating_add(Amount::mtl(14)) < net.free("//Bob").await);
    net.miner("withdraw --yes --coldkey //Bob").await.succeeds().prints("has no unbonding stake");
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_gets_money_on_a_development_chain_and_passes_it_on() {
    let net = Net::new().await;
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| home.path().join(name).display().to_string();
    std::fs::write(file("password"), "open sesame\n").unwrap();
    let (coldkey, password) = (file("cold.json"), file("password"));
    net.miner(&format!("keys new --key {coldkey} --password-file {password}")).await.succeeds();

    // The output names the source of money where it is missing.
    let address = net.miner(&format!("keys show --key {coldkey}")).await.succeeds().out.trim().to_owned();
    let way = format!("mettle transfer --key //Alice --to {address} --amount");
    net.miner(&format!("balance {coldkey}")).await.succeeds().prints("free      0 MTL").prints(&way);
    let register = format!(
        "register --yes --coldkey {coldkey} --coldkey-password-file {password} --key //Bob//hot --stake 10 --endpoint \
         http://127.0.0.1:9000/seat"
    );
    net.miner(&register).await.ends_with_code(1).prints(&way);

    let line = format!("transfer --key //Alice --to {coldkey} --amount 50");
    let dry = net.miner(&format!("{line} --dry-run")).await;
    dry.succeeds().prints("Balances.transfer_keep_alive").prints("50 MTL free").prints("compare its address");
    net.miner(&line).await.ends_with_code(exit::EXIT_NOT_SIGNED).prints("--yes");
    net.miner(&format!("balance {address}")).await.succeeds().prints("free      0 MTL");
    let sent = net.miner(&format!("{line} --yes --json")).await.succeeds().json();
    assert_eq!(sent["result"]["to_free"], Amount::mtl(50).0.to_string());
    assert_eq!(
        (&sent["result"]["to"], sent["preview"]["calls"][0]["call"].as_str()),
        (&Value::String(address.clone()), Some("Balances.transfer_keep_alive"))
    );

    // It can register a seat.
    net.miner(&register).await.succeeds().prints("uid ");
    let has = net.miner(&format!("balance {coldkey}")).await;
    has.succeeds().prints("held      10 MTL").prints("run 0     10 MTL staked with uid 0");
    let json = net.miner(&format!("balance {address} --json")).await.succeeds().json();
    assert_eq!(json["runs"][0]["staked"], Amount::mtl(10).0.to_string());

    // Impossible transfers are refused without a fee.
    let free = net.free("//Bob").await;
    for (line, says) in [
        ("--key //Bob --to //Bob --amount 1", "same account"),
        ("--key //Bob --to //Eve --amount 0", "0 MTL"),
        ("--key //Bob --to nobody.json --amount 1", "names no account"),
        ("--key //Bob --to //Eve --amount 99999999999", "less than"),
        ("--to //Eve --amount 1", "no key to sign with"),
    ] {
        net.miner(&format!("transfer --yes {line}")).await.ends_with_code(1).prints(says);
    }
    assert_eq!(net.free("//Bob").await, free);

    // A proxy with full control, and one without.
    let bob = dev("//Bob").address();
    let proxied = format!("transfer --yes --key //Dave --proxy-of {bob} --to //Eve --amount 3");
    for (may, code) in [("non-transfer", Some(exit::EXIT_REFUSED)), ("any", None)] {
        let proxy = format!("--yes --coldkey //Bob --proxy {} --may {may}", dev("//Dave").address());
        net.miner(&format!("proxy add {proxy}")).await.succeeds();
        let done = net.miner(&proxied).await;
        match code {
            Some(code) => done.ends_with_code(code),
            None => done.succeeds().prints("as a proxy, in the name of"),
        };
        net.miner(&format!("proxy remove {proxy}")).await.succeeds();
    }
    net.miner("balance").await.ends_with_code(1).prints("mettle balance coldkey.json");
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_are_listed_and_a_run_that_is_not_served_is_still_shown() {
    let net = Net::new().await;
    net.registered(Role::Miner, "//Bob", "//Bob//hot").await;
    let list = net.miner("run list").await;
    list.succeeds().prints("(not served)").prints("1/192").prints("not begun").prints("run show --run");
    let json = net.miner("run list --json").await.succeeds().json();
    assert_eq!(json["runs"][0]["miners"]["taken"], 1);
    let shown = net.miner("run show").await;
    shown.succeeds().prints("1 of 192 seats are taken").prints("not known: ").prints("127.0.0.1:9000/origin");
    assert!(shown.out.lines().all(|line| line.chars().count() <= 80), "{}", shown.out);
    for line in
        ["run show --run 7", "status --uid 0 --run 7", "run fund --yes --key //Bob --amount 1 --run 7"]
    {
        net.miner(line).await.ends_with_code(1).prints("no run 7").prints("`mettle run list`");
    }
    // The chain's own error text does not name a client.
    let fund = Call::Fund { run: RunId(7), amount: Amount::mtl(1) };
    let refused = net.alice.submit(fund).await.unwrap_err().to_string();
    assert!(refused.contains("UnknownRun") && refused.contains("`mettle run list`"), "{refused}");
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_signed_without_confirmation() {
    let net = Net::new().await;
    net.registered(Role::Miner, "//Bob", "//Bob//hot").await;
    let line = "stake --coldkey //Bob --key //Bob//hot --amount 5";
    let bob = dev("//Bob").address();

    net.miner(line).await.ends_with_code(exit::EXIT_NOT_SIGNED).prints("Registry.add_stake").prints("--yes");
    net.enter(Role::Miner, line, Some("n\n")).await.ends_with_code(exit::EXIT_NOT_SIGNED);
    let dry = net.miner(&format!("{line} --dry-run")).await;
    dry.succeeds()
        .prints(&format!("signed by {bob} (the coldkey)"))
        .prints("amount: 5 MTL")
        .prints("fee: about 0.");
    assert!(dry.out.contains("call data: 0x"), "a dry run's preview is its result: {}", dry.out);
    let json = net.miner(&format!("{line} --json")).await;
    json.ends_with_code(exit::EXIT_NOT_SIGNED);
    let object = json.json();
    assert_eq!(object["preview"]["calls"][0]["call"], "Registry.add_stake");
    assert_eq!(object["error"]["exit_code"], exit::EXIT_NOT_SIGNED);
    assert_eq!(net.seat("//Bob//hot").await.seat.stake, STAKE.0, "nothing was signed");

    net.enter(Role::Miner, line, Some("y\n")).await.succeeds().prints("Sign? [y/N]").prints("has 15 MTL");
    let signed = net.miner(&format!("{line} --json --yes")).await;
    let object = signed.succeeds().json();
    assert_eq!(object["result"]["stake"], Amount::mtl(20).0.to_string());
    assert!(object["result"]["included"][0]["block"].is_u64(), "{object}");
    assert_eq!(object["preview"]["signer"], bob);
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_does_not_own_the_seat_is_refused_without_a_fee() {
    let net = Net::new().await;
    net.registered(Role::Miner, "//Bob", "//Bob//hot").await;
    let bob = dev("//Bob").address();
    for line in [
        "stake --yes --coldkey //Charlie --uid 0 --amount 1",
        "unstake --yes --coldkey //Charlie --uid 0 --all",
        "rotate-key --yes --coldkey //Charlie --uid 0 --new-key //Charlie//hot",
        "set-payout --yes --coldkey //Charlie --uid 0 --to stake",
        "rewind --yes --coldkey //Charlie --uid 0 --to 3",
    ] {
        let before = net.free("//Charlie").await;
        net.miner(line).await.ends_with_code(1).prints(&format!("belongs to {bob}"));
        assert_eq!(net.free("//Charlie").await, before, "{line}");
    }
    net.miner("stake --yes --coldkey //Bob --uid 7 --amount 1")
        .await
        .ends_with_code(1)
        .prints("there is no uid 7");
    net.miner("stake --yes --coldkey //Bob --amount 1").await.ends_with_code(1).prints("--uid UID");
    net.miner("claim --yes --uid 0").await.ends_with_code(1).prints("no key to sign with");
    // A refusal that only the chain can give.
    let refused = net.miner("stake --json --yes --coldkey //Bob --uid 0 --amount 5000000").await;
    let object = refused.ends_with_code(exit::EXIT_REFUSED).json();
    assert_eq!(object["error"]["refused"]["error"], "NotEnoughFunds");
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hotkey_is_changed_from_the_next_window_on() {
    let net = Net::new().await;
    let uid = net.registered(Role::Validator, "//Bob", "//Bob//hot").await;
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).display().to_string();
    std::fs::write(home.path().join("password"), "open sesame\n").unwrap();
    let (file, password) = (path("hot.json"), path("password"));
    let rotate = |password: &str| {
        format!("rotate-key --coldkey //Bob --key //Bob//hot --new-key {file} --new-password-file {password}")
    };
    let line = rotate(&password);
    net.validator(&format!("{line} --dry-run")).await.ends_with_code(1).prints("keys new");
    let changed = net.validator(&format!("{line} --yes")).await;
    changed
        .succeeds()
        .prints("Wrote the key")
        .prints("run the node with the old hotkey until then")
        .prints("with window");
    let shown = net.validator(&format!("keys show --key {file}")).await;
    let new = shown.succeeds().out.trim().to_owned();
    changed.prints(&new);
    let waiting = net.seat("//Bob//hot").await;
    assert!(matches!(waiting.pending, Some(PendingChange::Rotates(hotkey)) if address(&hotkey.0) == new));
    net.validator("status --key //Bob//hot").await.succeeds().prints("changes its hotkey to");

    // A new hotkey signs its consent, here and as it takes a seat of its own.
    std::fs::write(home.path().join("wrong"), "open barley\n").unwrap();
    let refused = "wrong password";
    net.validator(&rotate(&path("wrong"))).await.ends_with_code(1).prints(refused);
    let endpoint = "http://127.0.0.1:9000/seat";
    let other = path("other.json");
    net.validator(&format!("keys new --key {other} --password-file {password}")).await.succeeds();
    let register = |password: &str| {
        format!(
            "register --coldkey //Bob --key {other} --password-file {password} --stake 10 --endpoint {endpoint}"
        )
    };
    net.miner(&format!("{} --dry-run", register(&path("wrong")))).await.ends_with_code(1).prints(refused);
    net.miner(&format!("{} --dry-run", register(&password))).await.succeeds().prints("proof: 0x");
    net.miner(&format!("{} --yes", register(&password))).await.succeeds().prints("uid ");

    net.validator(&format!("{line} --yes"))
        .await
        .ends_with_code(exit::EXIT_REFUSED)
        .prints("Registry.ChangeWaiting");

    net.windows_later(2).await;
    let seats = net.alice.seats(net.run).await.unwrap();
    let seat = seats.iter().find(|seat| seat.id.uid == uid).unwrap();
    assert_eq!(address(&seat.hotkey.0), new);
    net.validator(&format!("{line} --yes")).await.ends_with_code(1).prints("has no seat");
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nomination_is_made_withdrawn_and_returns() {
    let net = Net::new().await;
    let uid = net.registered(Role::Validator, "//Bob", "//Bob//hot").await;
    let miner = net.registered(Role::Miner, "//Bob", "//Bob//miner").await;

    net.validator(&format!("set-commission --yes --coldkey //Bob --uid {uid} --commission 0"))
        .await
        .succeeds();
    net.validator(&format!("set-commission --yes --coldkey //Bob --uid {miner} --commission 10%"))
        .await
        .ends_with_code(1)
        .prints("is a miner");
    let line = format!("nominate --key //Charlie --uid {uid} --amount 50");
    net.validator(&line).await.ends_with_code(exit::EXIT_NOT_SIGNED).prints("Nomination.nominate");
    net.validator(&format!("{line} --yes")).await.succeeds().prints("has 50 MTL behind uid");
    assert_eq!(net.seat("//Bob//hot").await.nominated, Amount::mtl(50).0);
    net.validator(&format!("nominate --yes --key //Charlie --uid {miner} --amount 5"))
        .await
        .prints("is a miner");
    net.validator("status --key //Bob//hot").await.succeeds().prints("50.00 MTL nominated behind it");

    net.validator(&format!("unnominate --yes --key //Charlie --uid {uid} --amount 60"))
        .await
        .ends_with_code(1)
        .prints("take back at most that");
    net.validator(&format!("unnominate --yes --key //Charlie --uid {uid} --amount 20"))
        .await
        .succeeds()
        .prints("20 MTL is free in");
    net.validator("nominations --key //Charlie")
        .await
        .succeeds()
        .prints("30.00 MTL nominated")
        .prints("20.00 MTL taken back");
    let listed = net.validator(&format!("nominations --json --of {}", dev("//Charlie").address())).await;
    let listed = listed.succeeds().json();
    assert_eq!(listed["result"]["nominations"][0]["amount"], Amount::mtl(30).0.to_string());
    net.validator(&format!("nominations claim --yes --key //Charlie --uid {uid}"))
        .await
        .succeeds()
        .prints("nothing to claim");
    net.validator(&format!("nominations claim --yes --key //Dave --uid {uid}"))
        .await
        .prints("has nothing behind");

    net.validator(&format!("unnominate --yes --all --key //Charlie --uid {uid}")).await.succeeds();
    net.windows_later(3).await;
    let before = net.free("//Charlie").await;
    net.validator(&format!("nominations withdraw --yes --key //Charlie --uid {uid}"))
        .await
        .succeeds()
        .prints("50 MTL went to");
    assert!(before.saturating_add(Amount::mtl(49)) < net.free("//Charlie").await);
    net.validator("nominations --key //Charlie").await.succeeds().prints("nothing behind any validator");

    let raised = format!("set-commission --yes --coldkey //Bob --uid {uid} --commission 12.5%");
    net.validator(&raised).await.succeeds().prints("takes effect after 1 window").prints("will be 12.5 %");
    let status = net.validator("status --key //Bob//hot").await;
    status.succeeds().prints("at a commission of 0 %").prints("the commission rises to 12.5 % in window");
    let status = net.validator("status --json --key //Bob//hot").await.succeeds().json();
    assert_eq!(status["result"]["seat"]["commission_raise"]["commission"], 125);
    net.windows_later(3).await;
    assert_eq!(net.seat("//Bob//hot").await.commission, Permille(125));
    let status = net.validator("status --json --key //Bob//hot").await.succeeds().json();
    assert_eq!(status["result"]["seat"]["commission_raise"], Value::Null);
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_funds_changes_pauses_and_hands_over_a_run() {
    let net = Net::new().await;
    net.validator("run fund --yes --key //Charlie --amount 100").await.succeeds().prints("holds 100 MTL");

    net.validator("run terms").await.succeeds().prints("miner_seats_max").prints("no new terms are pending");
    net.validator("run params").await.succeeds().prints("miner_seats_max");
    let set = "run terms --key //Alice --set miner_seats_max=7 --set validator_stake_min=2.5";
    net.validator(set).await.ends_with_code(exit::EXIT_NOT_SIGNED).prints("miner_seats_max: 192 -> 7");
    net.validator("run terms --yes --key //Charlie --set quorum=10")
        .await
        .ends_with_code(1)
        .prints("belongs to");
    net.validator("run terms --yes --key //Alice --set quorum=0").await.ends_with_code(1).prints("quorum");
    net.validator("run terms --yes --key //Alice --set density=1")
        .await
        .ends_with_code(1)
        .prints("no term `density`");
    net.validator(&format!("{set} --yes"))
        .await
        .succeeds()
        .prints("validator_stake_min, miner_seats_max will change with");
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("terms.json");
    std::fs::write(&file, r#"{ "seat_price_min": "1 MTL", "shares": { "owner": 90, "burn": "1 %" } }"#)
        .unwrap();
    net.validator(&format!("run terms --yes --key //Alice --file {}", file.display()))
        .await
        .succeeds()
        .prints("includes them");
    let shown = net.validator("run terms --json").await.succeeds().json();
    assert_eq!(shown["result"]["terms"]["miner_seats_max"], "192");
    assert_eq!(shown["result"]["pending"]["miner_seats_max"], "7");
    assert_eq!(shown["result"]["pending"]["shares.burn"], "1 %");
    assert_eq!(shown["result"]["limits"]["shares.owner"], "20 %");
    let above = "run terms --yes --key //Alice --set shares.owner=201 --set shares.miners=389";
    net.validator(above).await.ends_with_code(1).prints("above the limit");
    // Unbonding takes one window, and an epoch has four.
    net.windows_later(10).await;
    let terms = net.alice.run(net.run).await.unwrap().terms;
    assert_eq!((terms.miner_seats_max, terms.seat_price_min), (7, Amount::mtl(1).0));
    net.validator("run terms --cancel --yes --key //Alice")
        .await
        .succeeds()
        .prints("no new terms are pending");
    net.validator("run terms --yes --key //Alice --set miner_seats_max=8").await.succeeds();
    net.validator("run terms --cancel --yes --key //Alice")
        .await
        .succeeds()
        .prints("does not become 8")
        .prints("stay unchanged");

    net.validator("run resume --yes --key //Alice").await.succeeds().prints("not paused");
    net.validator("run pause --yes --key //Alice")
        .await
        .succeeds()
        .prints("no pay is earned")
        .prints("pauses with window");
    net.windows_later(2).await;
    assert!(net.alice.status(net.run).await.unwrap().stopped_by_owner);
    net.validator("run pause --yes --key //Alice").await.succeeds().prints("paused already");
    net.validator("run resume --yes --key //Alice").await.succeeds().prints("resumes with window");

    net.validator("run claim --yes --key //Alice").await.succeeds().prints("nothing to claim");
    let bob = dev("//Bob").address();
    net.validator(&format!("run offer --yes --key //Alice --to {bob}"))
        .await
        .succeeds()
        .prints("is offered to");
    net.validator("run accept --yes --key //Charlie").await.ends_with_code(exit::EXIT_REFUSED);
    net.validator("run accept --yes --key //Bob").await.succeeds().prints(&format!("belongs to {bob}"));
    assert_eq!(net.alice.run(net.run).await.unwrap().owner, dev("//Bob").account());
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_a_run_is_previewed_and_gives_stakes_and_deposit_back() {
    let net = Net::new().await;
    let held = async |key: &str| net.alice.balance(&dev(key).account()).await.unwrap().held;
    net.registered(Role::Miner, "//Bob", "//Bob//hot").await;
    net.validator("run fund --yes --key //Charlie --amount 100").await.succeeds();
    net.windows_later(1).await;
    let close = "run close --yes --key //Alice";
    net.validator(close).await.ends_with_code(1).prints("is not paused").prints("mettle run pause");

    net.validator("run pause --yes --key //Alice").await.succeeds();
    net.windows_later(2).await;
    net.validator(close).await.ends_with_code(exit::EXIT_REFUSED).prints("StoppedTooBriefly");
    net.windows_later(9).await;
    let deposit = held("//Alice").await;
    assert!(Amount::ZERO < deposit);
    net.validator("run close --dry-run --key //Alice")
        .await
        .succeeds()
        .prints("ends for good")
        .prints("1 seat of miners and 0 seats of validators")
        .prints("is burnt: 100 MTL now")
        .prints("deposit is released");
    assert_eq!(held("//Bob").await, STAKE, "a dry run signs nothing");
    net.validator("run close --yes --key //Charlie").await.ends_with_code(1).prints("belongs to");

    net.validator(close).await.succeeds().prints("is closed");
    for _ in 0..20 {
        net.chain.seal_now().await.unwrap();
    }
    net.catch_up().await;
    assert_eq!(held("//Bob").await, Amount::ZERO);
    assert_eq!(held("//Alice").await, Amount::ZERO);
    net.validator(close).await.ends_with_code(1).prints("no run");
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_acts_for_a_coldkey_and_a_refused_inner_call_is_an_error() {
    let net = Net::new().await;
    let uid = net.registered(Role::Miner, "//Bob", "//Bob//hot").await;
    let (bob, eve) = (dev("//Bob").address(), dev("//Eve").address());
    let stake = format!("stake --yes --coldkey //Eve --proxy-of {bob} --uid {uid} --amount 3");
    net.miner(&stake).await.ends_with_code(exit::EXIT_REFUSED).prints("Proxy.NotProxy");

    let add = format!("proxy add --yes --coldkey //Bob --proxy {eve} --may staking");
    net.miner(&add).await.succeeds().prints("manage seats").prints("may act for");
    net.miner(&stake)
        .await
        .succeeds()
        .prints("as a proxy, in the name of")
        .prints("Proxy.proxy")
        .prints("has 13 MTL at stake");
    assert_eq!(net.seat("//Bob//hot").await.seat.stake, Amount::mtl(13).0);

    // The proxy call itself succeeds, and the inner call fails.
    let too_much = format!("stake --yes --coldkey //Eve --proxy-of {bob} --uid {uid} --amount 5000000");
    net.miner(&too_much).await.ends_with_code(exit::EXIT_REFUSED).prints("Registry.NotEnoughFunds");
    net.miner(&format!("proxy remove --yes --coldkey //Bob --proxy {eve} --may staking")).await.succeeds();
    net.miner(&stake).await.ends_with_code(exit::EXIT_REFUSED).prints("Proxy.NotProxy");
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pay_goes_where_the_seat_sets_and_claiming_nothing_costs_no_fee() {
    let net = Net::new().await;
    let uid = net.registered(Role::Miner, "//Bob", "//Bob//hot").await;
    let before = net.free("//Bob//hot").await;
    net.miner("claim --yes --key //Bob//hot").await.succeeds().prints("nothing to claim");
    net.miner("claim --former --yes --coldkey //Bob").await.succeeds().prints("nothing to claim");
    assert_eq!(net.free("//Bob//hot").await, before, "no fee was paid");
    net.miner("set-payout --yes --coldkey //Bob --key //Bob//hot --to stake")
        .await
        .succeeds()
        .prints("becomes stake");
    assert!(net.seat("//Bob//hot").await.pays_into_stake);
    net.miner("status --key //Bob//hot")
        .await
        .succeeds()
        .prints("into its stake")
        .prints("no epoch has been paid");
    net.miner(&format!("set-payout --yes --coldkey //Bob --uid {uid} --to account")).await.succeeds();
    assert!(!net.seat("//Bob//hot").await.pays_into_stake);
    let status = net.miner("status --json --key //Bob//hot").await.succeeds().json();
    assert_eq!(status["result"]["seat"]["stake"], STAKE.0.to_string());
    assert_eq!(status["result"]["payslips"], serde_json::json!([]));
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_epoch_s_pay_is_claimed_by_each_recipient() {
    let net = Net::new().await;
    net.validator("run fund --yes --key //Charlie --amount 100").await.succeeds();
    let miner = net.registered(Role::Miner, "//Bob", "//Bob//hot").await;
    let validator = net.registered(Role::Validator, "//Dave", "//Dave//hot").await;
    net.validator(&format!("nominate --yes --key //Eve --uid {validator} --amount 10")).await.succeeds();
    net.miner("why --window 0 --key //Bob//hot").await.succeeds().prints("not open yet");
    net.play_epoch("//Dave//hot", "//Bob//hot", miner).await;

    let why = net.miner("why --window 0 --key //Bob//hot").await;
    why.succeeds()
        .prints("+ commitment")
        .prints(&format!("valid for uid {validator} with 100.0 % of the stake"))
        .prints("merged, as one of 1 of 1")
        .prints("it is paid")
        .prints("100.00 % of the miners' pay")
        .prints("0.25 MTL for 1 of 4 windows merged")
        .prints("no receipt anchored")
        .prints("To earn more");
    assert!(why.out.lines().all(|line| line.chars().count() <= 80), "{}", why.out);
    let json = net.miner(&format!("why --window 0 --uid {miner} --json")).await.succeeds().json();
    let steps = json["steps"].as_array().unwrap();
    let step = |name: &str| steps.iter().find(|step| step["name"] == name).expect(name);
    assert_eq!(
        (step("selection")["verdict"].as_str(), step("pay")["verdict"].as_str()),
        (Some("good"), Some("good"))
    );
    let idle = net.miner("why --window 1 --key //Bob//hot").await;
    idle.succeeds().prints("- commitment").prints("void").prints("missed");
    let served = net.validator("why --window 0 --key //Dave//hot").await;
    served.succeeds().prints("+ attestation").prints("+ vote").prints("- receipt").prints("within consensus");
    net.validator("why --window 1 --key //Dave//hot")
        .await
        .succeeds()
        .prints("- attestation")
        .prints("- vote");

    let books = net.alice.status(net.run).await.unwrap().treasury;
    let terms = net.alice.run(net.run).await.unwrap().terms;
    let part = |share: Permille| Amount(terms.emission_per_epoch / 4 / 1000 * u128::from(share.0));
    assert_eq!(books.burnt, part(terms.shares.burn).0);
    net.miner("status --key //Bob//hot")
        .await
        .succeeds()
        .prints("epoch 0: ")
        .prints("of the miners' part of 0.25 MTL for 1 of 4 windows");
    net.validator("status --key //Dave//hot").await.succeeds().prints("to its nominators");

    // The hotkey signs, without a fee; the coldkey has the pay, whole.
    let (before, hot) = (net.free("//Bob").await, net.free("//Bob//hot").await);
    let claimed = net.miner("claim --yes --key //Bob//hot").await;
    claimed.succeeds().prints(&format!("{} went to {}", part(terms.shares.miners), dev("//Bob").address()));
    assert_eq!(net.free("//Bob").await, before.saturating_add(part(terms.shares.miners)));
    assert_eq!(net.free("//Bob//hot").await, hot, "no fee was paid");
    net.miner("claim --yes --key //Bob//hot").await.succeeds().prints("nothing to claim");

    // Its nominator has as much behind the validator as the validator itself.
    let half = Amount(part(terms.shares.validators).0 / 2);
    let nominator = net.free("//Eve").await;
    let line = format!("nominations claim --yes --json --key //Eve --uid {validator}");
    let claimed = net.validator(&line).await.succeeds().json();
    let fee = Amount::mtl(1).0 / 100;
    let got = net.free("//Eve").await.0 - nominator.0;
    assert!(half.0 - fee < got && got < half.0, "{} of {half}: {claimed}", Amount(got));

    // A seat that is given up leaves its pay to its coldkey.
    net.validator("unstake --all --yes --coldkey //Dave --key //Dave//hot").await.succeeds();
    net.windows_later(1).await;
    let before = net.free("//Dave").await;
    net.validator("claim --former --yes --coldkey //Dave")
        .await
        .succeeds()
        .prints(&format!("{half} went to"));
    let got = net.free("//Dave").await.0 - before.0;
    assert!(half.0 - fee < got && got < half.0, "{}", Amount(got));

    let owner = part(terms.shares.owner);
    let before = net.free("//Alice").await;
    net.validator("run claim --yes --key //Alice").await.succeeds();
    let after = net.free("//Alice").await.saturating_add(Amount(fee));
    assert!(before.saturating_add(owner) < after || owner == Amount::ZERO);
    let books = net.alice.status(net.run).await.unwrap().treasury;
    assert_eq!((books.claimable, books.funded), (0, books.treasury + books.paid + books.burnt));
    net.chain.shutdown().await;
}

/// Starts an S3 server with these buckets, each with its own name as key.
async fn buckets(names: &[&str]) -> S3Server {
    let buckets = names.iter().map(|name| BucketConfig::new(*name, *name, "secret")).collect();
    S3Server::start(ServerConfig::temporary(buckets)).await.unwrap()
}

fn store_settings(server: &S3Server, bucket: &str, secret: &str) -> String {
    let endpoint = server.endpoint();
    format!(
        "[store]\nendpoint = \"{endpoint}\"\nbucket = \"{bucket}\"\naccess_key = \"{bucket}\"\nsecret_key = \"{secret}\"\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seat_s_bucket_is_checked_before_anything_is_signed() {
    let net = Net::new().await;
    let server = buckets(&["mine", "other"]).await;
    let home = tempfile::tempdir().unwrap();
    let line = |secret: &str, readers_at: &str| {
        let settings = home.path().join("miner.toml");
        std::fs::write(&settings, store_settings(&server, "mine", secret)).unwrap();
        format!(
            "register --yes --config {} --coldkey //Bob --key //Bob//hot --stake 10 --endpoint {}",
            settings.display(),
            server.base_url(readers_at)
        )
    };
    let before = net.free("//Bob").await;
    net.miner(&line("secret", "other")).await.ends_with_code(1).prints("others cannot read the bucket");
    net.miner(&line("wrong", "mine")).await.ends_with_code(1).prints("takes no object");
    assert_eq!(net.free("//Bob").await, before, "nothing was signed");
    assert!(net.alice.seats(net.run).await.unwrap().is_empty());

    net.miner(&line("secret", "mine")).await.succeeds().prints("uid ");
    let credentials = Credentials { access_key: "mine".into(), secret_key: "secret".into() };
    let bucket = S3Store::open(&S3Settings::new(server.endpoint(), "mine", credentials)).unwrap();
    assert!(bucket.list("", 10).await.unwrap().entries.is_empty(), "the check leaves nothing");
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_command_makes_a_seat_and_finds_what_is_done() {
    let net = Net::new().await;
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| home.path().join(name).display().to_string();
    std::fs::write(file("password"), "open sesame\n").unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(file("password"), std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    // Nothing is written for an impossible seat.
    let bare = net.examine(&format!("init validator --dir {} --yes", file("v"))).await;
    bare.ends_with_code(1).prints("--secret-file");
    assert!(!home.path().join("v").exists());

    // The run's owner serves nothing here, and no validator receives contributions.
    let init = format!("init miner --dir {} --password-file {}", file("seat"), file("password"));
    let before = net.free("//Alice").await;
    let unwell = net.examine(&format!("{init} --yes")).await;
    unwell.ends_with_code(1).prints("FAIL  receivers").prints("nothing was signed");
    assert_eq!(net.free("//Alice").await, before);
    let keys: Vec<Vec<u8>> = ["seat/coldkey.json", "seat/hotkey.json"]
        .iter()
        .map(|key| std::fs::read(file(key)).unwrap())
        .collect();

    let init = format!("{init} --force");
    net.examine(&init).await.ends_with_code(4).prints("no terminal");
    let made = net.examine(&format!("{init} --yes")).await;
    made.succeeds()
        .prints("move 2 MTL")
        .prints("uid 0")
        .prints("miner start --config")
        .prints("seat/settings.toml");
    let seats = net.alice.seats(net.run).await.unwrap();
    assert!(seats[0].endpoint.starts_with("p2p://12D3KooW"), "{seats:?}");
    assert_eq!(seats[0].stake, Amount::mtl(1).0, "the run's minimum");
    let after = net.free("//Alice").await;
    assert!(after < before);

    // Repeating the command changes nothing.
    let again = net.examine(&format!("{init} --yes")).await;
    again.succeeds().prints("has its seat already").prints("are kept as they are");
    assert_eq!(net.free("//Alice").await, after);
    for (key, written) in ["seat/coldkey.json", "seat/hotkey.json"].iter().zip(keys) {
        assert_eq!(std::fs::read(file(key)).unwrap(), written);
    }
    // Flags that name another run or chain than the settings are refused.
    net.examine(&format!("{init} --yes --run 7")).await.ends_with_code(1).prints("METTLE_RUN names 7");
    let settings = std::fs::read_to_string(file("seat/settings.toml")).unwrap();
    let elsewhere = settings.replace(&net.chain.url(), "ws://127.0.0.1:1");
    std::fs::write(file("seat/settings.toml"), elsewhere).unwrap();
    let refused = net.examine(&format!("{init} --yes")).await;
    refused.ends_with_code(1).prints("names the chain ws://127.0.0.1:1, and --chain or METTLE_CHAIN names");
    assert_eq!(net.free("//Alice").await, after);
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doctor_names_what_keeps_a_node_from_working() {
    let net = Net::new().await;
    let server = buckets(&["mine", "other"]).await;
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| home.path().join(name).display().to_string();
    let set_mode = |name: &str, mode: u32| {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(file(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    std::fs::write(file("password"), "open sesame\n").unwrap();
    set_mode("password", 0o600);
    let (hotkey, password) = (file("hot.json"), file("password"));
    net.miner(&format!("keys new --key {hotkey} --password-file {password}")).await.succeeds();
    let settings = |secret: &str, device: &str| {
        let top = format!(
            "key = \"{hotkey}\"\npassword_file = \"{password}\"\ndirectory = \"{}\"\ndevice = \"{device}\"\n",
            file("data")
        );
        std::fs::write(file("miner.toml"), top + &store_settings(&server, "mine", secret)).unwrap();
        set_mode("miner.toml", 0o600);
    };
    let doctor = format!("doctor --config {}", file("miner.toml"));
    settings("secret", "cpu");
    let unseated = net.examine(&doctor).await;
    unseated.ends_with_code(1).prints("FAIL  seat").prints("mettle register miner").prints("ok    chain");
    let before = net.free("//Bob").await;
    let register = |endpoint: &str| {
        format!(
            "register --yes --coldkey //Bob --key {hotkey} --password-file {password} --stake 10 --endpoint {endpoint}"
        )
    };
    for endpoint in ["foo", "ftp://store.example.org/b", "https://a:b@store.example.org"] {
        net.miner(&register(endpoint)).await.ends_with_code(1).prints("cannot be the seat's bucket");
    }
    let peer = "p2p://12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp";
    let dialled = format!("{peer}/ip4/203.0.113.5/tcp/4100");
    for (endpoint, why) in [("p2p://somebody", "names no peer"), (&dialled, "has an address")] {
        net.miner(&register(endpoint)).await.ends_with_code(1).prints(why);
    }
    assert_eq!(net.free("//Bob").await, before, "nothing was signed");
    let good = server.base_url("mine");
    net.miner(&register(&good)).await.succeeds().prints("the bucket was not tried");

    // The run's owner serves nothing here, so specification and data fail, and all other checks pass.
    let seated = net.examine(&doctor).await;
    seated
        .ends_with_code(1)
        .prints("ok    settings")
        .prints("ok    hotkey")
        .prints("it opens the hotkey")
        .prints("new ones are finalised")
        .prints("uid 0, miner, stake 10 MTL")
        .prints(&format!("read at {good}"))
        .prints("FAIL  origin")
        .prints("manifests/")
        .prints("ok    device      cpu");
    assert!(seated.out.lines().all(|line| line.chars().count() <= 80), "{}", seated.out);
    let json = net.examine(&format!("{doctor} --json")).await.json();
    let checks = json["checks"].as_array().unwrap();
    let verdict = |name: &str| {
        checks.iter().find(|check| check["name"] == name).expect(name)["verdict"].as_str().unwrap()
    };
    assert_eq!((verdict("bucket"), verdict("balance"), verdict("run")), ("ok", "ok", "failed"));
    assert_eq!(json["error"]["exit_code"], 1);
    let credentials = Credentials { access_key: "mine".into(), secret_key: "secret".into() };
    let bucket = S3Store::open(&S3Settings::new(server.endpoint(), "mine", credentials)).unwrap();
    assert!(bucket.list("", 10).await.unwrap().entries.is_empty(), "the check leaves nothing");

    settings("wrong", "tpu");
    let wrong = net.examine(&doctor).await;
    wrong.ends_with_code(1).prints("FAIL  bucket").prints("FAIL  device").prints("docs/store.md");
    net.examine(&format!("{doctor} --role validator"))
        .await
        .ends_with_code(1)
        .prints("miner's seat, not a validator's");
    set_mode("hot.json", 0o644);
    if cfg!(unix) {
        net.examine(&doctor).await.prints("warn  hotkey").prints("chmod 600");
    }
    std::fs::write(file("miner.toml"), "chian = 1").unwrap();
    net.miner(&doctor).await.ends_with_code(1).prints("FAIL  settings").prints("`chian`");
    net.chain.shutdown().await;
}

/// Writes a small dataset to `data` in `home`, and a model for it to `model.json`.
async fn prepare_data(home: &Path) {
    let path = |name: &str| home.join(name);
    let text = path("text");
    std::fs::create_dir(&text).unwrap();
    for document in 0..40 {
        let lines = (0..40).map(|line| format!("{document} times {line} is {}.\n", document * line));
        std::fs::write(text.join(format!("{document}.txt")), lines.collect::<String>()).unwrap();
    }
    let options = prepare::PrepareOptions {
        tokenizer: prepare::TokenizerChoice::Train { vocab: 400 },
        seq_len: 16,
        shard_bytes: 20_000,
        held_out_sequences_min: 50,
        ..prepare::PrepareOptions::new(
            prepare::Source::directory(text),
            prepare::OutputDirectory::Directory(path("data")),
        )
    };
    tokio::task::spawn_blocking(move || prepare::prepare(options, &mut |_| {})).await.unwrap().unwrap();
    let model = r#"{ "vocab": 400, "d_model": 32, "layers": 1, "heads": 2, "kv_heads": 1, "d_ff": 64, "seq_len": 16,
        "rope_theta": 10000.0, "norm_epsilon": 1e-5 }"#;
    std::fs::write(path("model.json"), model).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_published_and_created_as_previewed() {
    let net = Net::new().await;
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    prepare_data(home.path()).await;
    let server = buckets(&["origin", "other"]).await;
    std::fs::write(path("settings.toml"), store_settings(&server, "origin", "secret")).unwrap();
    let mut params = RunParams { localnet: true, ..RunParams::default() };
    params.schedule.start = Block(0);
    std::fs::write(path("params.json"), serde_json::to_vec(&params).unwrap()).unwrap();
    std::fs::write(path("terms.json"), r#"{ "miner_seats_max": 12 }"#).unwrap();
    let line = |model: &str| {
        format!(
            "run create --key //Bob --config {} --dataset {} --name tiny --params {} --terms {} --model {model} --origin {}/origin \
             --fund 7",
            path("settings.toml").display(),
            path("data").display(),
            path("params.json").display(),
            path("terms.json").display(),
            server.endpoint()
        )
    };
    let good = line(&path("model.json").display().to_string());

    // An impossible request is refused before the confirmation.
    net.validator(&line("117k")).await.ends_with_code(1).prints("vocabulary");
    net.validator(&line("huge")).await.ends_with_code(1);
    net.validator(&good.replace("/origin", "/other"))
        .await
        .ends_with_code(1)
        .prints("others cannot read the bucket");
    let held = |net: &Net| {
        let alice = net.alice.clone();
        async move { alice.balance(&dev("//Bob").account()).await.unwrap().held }
    };
    let asked = net.validator(&good).await;
    asked.ends_with_code(exit::EXIT_NOT_SIGNED).prints("Registry.create_run").prints("Rewards.fund");
    let dry = net.validator(&format!("{good} --dry-run")).await;
    dry.succeeds()
        .prints("first, specification, dataset and initial weights are published in the bucket origin");
    dry.prints("16.608695652174 MTL is held as a deposit")
        .prints("20 blocks after")
        .prints("7 MTL goes into")
        .prints("fee: about");
    assert_eq!((net.alice.runs().await.unwrap().len(), held(&net).await), (1, Amount::ZERO));

    let created = net.validator(&format!("{good} --json --yes")).await.succeeds().json();
    let calls: Vec<&str> = created["preview"]["calls"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|call| call["call"].as_str())
        .collect();
    assert_eq!(calls, ["Registry.create_run", "Rewards.fund"]);
    assert_eq!(created["preview"]["signer"], dev("//Bob").address());
    let id = RunId(created["result"]["run"].as_u64().unwrap() as u32);
    let run = net.alice.run(id).await.unwrap();
    assert_eq!((run.owner, run.terms.miner_seats_max), (dev("//Bob").account(), 12));
    // 10 MTL, and 10 for each of 12 + 64 seats per 115 blocks.
    let deposit = Amount(Amount::mtl(10).0 + (Amount::mtl(10).0 * 76).div_ceil(115));
    assert_eq!((run.treasury, held(&net).await), (Amount::mtl(7).0, deposit));
    assert_eq!(created["result"]["start"], run.params.schedule.start.0);
    let credentials = Credentials { access_key: "origin".into(), secret_key: "secret".into() };
    let bucket = S3Store::open(&S3Settings::new(server.endpoint(), "origin", credentials)).unwrap();
    let spec = bucket.get(&keys::spec(&run.spec), 1 << 20).await.unwrap();
    assert_eq!(Digest::of(&spec), run.spec);
    assert!(!bucket.get(&keys::manifest(&run.manifest), 1 << 30).await.unwrap().is_empty());

    let list = net.miner("run list").await;
    list.succeeds().prints("tiny").prints("0/12").prints("(not served)");
    let shown = net.miner(&format!("run show --run {}", id.0)).await;
    shown
        .succeeds()
        .prints("tiny")
        .prints("1 layers of 32")
        .prints("training sequences")
        .prints(&format!("{}/origin", server.endpoint()))
        .prints("7.00 MTL");
    assert!(shown.out.lines().all(|line| line.chars().count() <= 80), "{}", shown.out);
    let json = net.miner(&format!("run show --run {} --json", id.0)).await.succeeds().json();
    assert_eq!((&json["spec"]["name"], &json["data"]["sequence_tokens"]), (&"tiny".into(), &16.into()));
    assert!(json["needs"]["miner"]["device_bytes"].is_u64(), "{json}");

    // A seat of this run lacks nothing.
    let seat = format!(
        "run = {}\nkey = \"//Bob//hot\"\ndirectory = \"{}\"\n{}",
        id.0,
        path("node").display(),
        store_settings(&server, "other", "secret")
            .replace("secret_key", "secret_key_file")
            .replace("= \"secret\"", &format!("= \"{}\"", path("store.secret").display()))
    );
    std::fs::write(path("store.secret"), "secret\n").unwrap();
    std::fs::write(path("seat.toml"), seat).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(path("store.secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let config = format!("--config {}", path("seat.toml").display());
    let endpoint = server.base_url("other");
    net.miner(&format!("register --yes {config} --coldkey //Bob --stake 10 --endpoint {endpoint}"))
        .await
        .succeeds();
    let well = net.examine(&format!("doctor {config}")).await;
    well.succeeds().prints("ok    uplink").prints("ok    disk").prints("ok    memory").prints("ok    origin");
    assert!(well.out.lines().all(|line| line.chars().count() <= 80), "{}", well.out);
    let other = net.examine(&format!("doctor {config} --device tpu --json")).await.ends_with_code(1).json();
    assert_eq!((&other["failed"], &other["error"]["exit_code"]), (&1.into(), &1.into()));
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_command_makes_a_run_and_finds_what_is_done() {
    let net = Net::new().await;
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| home.path().join(name).display().to_string();
    prepare_data(home.path()).await;
    let server = buckets(&["origin", "other"]).await;
    std::fs::write(file("secret"), "secret\n").unwrap();
    std::fs::write(file("password"), "open sesame\n").unwrap();
    let bare = format!("init run --dir {} --password-file {}", file("mine"), file("password"));
    // Nothing is written before all requirements are named.
    net.miner(&bare)
        .await
        .ends_with_code(1)
        .prints("the directory of a prepared dataset is missing: add --dataset");
    assert!(!Path::new(&file("mine")).exists());

    let init = |endpoint: &str| {
        format!(
            "{bare} --name mine --like 0 --dataset {} --model {} --fund 7 --store {} --bucket origin --access-key origin \
             --secret-file {} --endpoint {}",
            file("data"),
            file("model.json"),
            server.endpoint(),
            file("secret"),
            server.base_url(endpoint)
        )
    };
    let alice = || net.free("//Alice");
    let before = alice().await;
    let unread = net.miner(&format!("{} --yes", init("other"))).await;
    unread.ends_with_code(1).prints("others cannot read the bucket").prints("nothing was signed");
    let misfit = init("origin").replace(&file("model.json"), "6m");
    net.miner(&format!("{misfit} --yes")).await.ends_with_code(1).prints("sequences have 16 tokens");
    net.miner(&init("origin")).await.ends_with_code(4).prints("no terminal");
    assert_eq!((alice().await, net.alice.runs().await.unwrap().len()), (before, 1));
    let key = std::fs::read(file("mine/owner.json")).unwrap();

    let made = net.miner(&format!("{} --yes --json", init("origin"))).await.succeeds().json();
    let run = &made["result"]["run"];
    assert_eq!((run, made["result"]["next"].as_array().unwrap().len()), (&1.into(), 2));
    let view = net.alice.run(RunId(1)).await.unwrap();
    let like = net.alice.run(net.run).await.unwrap().params;
    assert_eq!((view.params.epoch_windows, view.treasury), (like.epoch_windows, Amount::mtl(7).0));
    let settings = std::fs::read_to_string(file("mine/settings.toml")).unwrap();
    assert!(settings.starts_with("run = 1\n"), "{settings}");
    let paid = alice().await;
    assert!(paid < before);
    // A command that was killed after the run's creation completes the run: no second run is created.
    std::fs::write(file("mine/settings.toml"), settings.replace("run = 1\n", "")).unwrap();
    let finished = net.miner(&format!("{} --yes", init("origin"))).await;
    finished.succeeds().prints("finish run 1").prints("run 1, first window at block");

    // Repeating the command changes nothing.
    let again = net.miner(&format!("{} --yes", init("origin"))).await;
    again.succeeds().prints("The run exists already").prints("kept as they are");
    again.prints("mettle init validator --chain").prints("mettle init miner --chain");
    assert_eq!((alice().await, net.alice.runs().await.unwrap().len()), (paid, 2));
    assert_eq!(net.alice.run(RunId(1)).await.unwrap().treasury, Amount::mtl(7).0);
    assert_eq!(std::fs::read(file("mine/owner.json")).unwrap(), key);
    let more = init("origin").replace("--fund 7", "--fund 9");
    let more = net.miner(&format!("{more} --yes")).await;
    more.succeeds().prints("mettle run fund --config").prints("--amount \"2 MTL\"");
    assert_eq!(alice().await, paid);
    let other = init("origin").replace("--name mine", "--name other");
    net.miner(&format!("{other} --yes")).await.ends_with_code(1).prints("belongs to run 1");
    let shown = net.miner(&format!("run terms --config {}", file("mine/settings.toml"))).await;
    shown.succeeds().prints("the terms of run 1");
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wallet_s_account_is_imported_and_signs_as_a_coldkey() {
    let net = Net::new().await;
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| home.path().join(name).display().to_string();
    std::fs::write(file("password"), "a password\n").unwrap();
    std::fs::write(file("wrong"), "another\n").unwrap();
    let export =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../chain/client/tests/data/polkadot-js-sr25519.json");
    let import = |password: &str| {
        format!("keys import --from {export} --key {} --password-file {}", file("cold.json"), file(password))
    };
    net.miner(&import("wrong")).await.ends_with_code(1).prints("wrong password");
    assert!(!Path::new(&file("cold.json")).exists());
    let address = "5Dhao73qcrJU7jhHyYit7VB276TwEkujGb9gAMzUegFWRopj";
    net.miner(&import("password")).await.succeeds().prints(address);
    net.miner(&import("password")).await.ends_with_code(1).prints("exists already");
    let shown = net.miner(&format!("keys show --json --key {}", file("cold.json"))).await.succeeds().json();
    assert_eq!((&shown["address"], &shown["scheme"]), (&address.into(), &"sr25519".into()));
    // The words and the path that the wallet made the account of.
    let words = "bottom drive obey lake curtain smoke basket hold race lonely fit walk//mettle//coldkey\n";
    std::fs::write(file("words"), words).unwrap();
    let from_words = format!(
        "keys new --scheme sr25519 --words-file {} --key {} --password-file {}",
        file("words"),
        file("words.json"),
        file("password")
    );
    net.miner(&from_words).await.succeeds().prints(address);

    // The account can pay and sign.
    let cold = format!("--coldkey {} --coldkey-password-file {}", file("cold.json"), file("password"));
    net.miner(&format!("transfer --yes --key //Alice --to {address} --amount 300")).await.succeeds();
    let back =
        format!("--key {} --password-file {} --to //Bob --amount 7", file("cold.json"), file("password"));
    net.miner(&format!("transfer --yes {back}")).await.succeeds().prints("7 MTL went to");
    net.validator(&format!(
        "register --yes {cold} --key //Bob//hot --stake 10 --endpoint http://127.0.0.1:1/v"
    ))
    .await
    .succeeds()
    .prints("uid 0");
    net.validator(&format!("stake --yes {cold} --uid 0 --amount 5")).await.succeeds();
    assert_eq!(net.seat("//Bob//hot").await.seat.stake, Amount::mtl(15).0);
    let nominate = format!("nominate --yes --uid 0 --amount 2 --key {}", file("cold.json"));
    net.validator(&format!("{nominate} --password-file {}", file("password"))).await.succeeds();

    // A hotkey signs what the protocol checks, which is ed25519.
    let line = format!(
        "register --yes --coldkey //Bob --key {} --password-file {} --stake 10 --endpoint http://127.0.0.1:1/m",
        file("cold.json"),
        file("password")
    );
    net.miner(&line).await.ends_with_code(1).prints("is an sr25519 key").prints("mettle keys new");
    net.chain.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_signed_elsewhere_is_checked_and_submitted_once() {
    let net = Net::new().await;
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| home.path().join(name).display().to_string();
    let bob = dev("//Bob");
    // Two calls: money for the hotkey, and the seat.
    let line = format!(
        "register --coldkey {} --key //Bob//hot --stake 10 --hotkey-funds 1 --endpoint http://127.0.0.1:1/m",
        bob.address()
    );
    net.miner(&format!("{line} --yes")).await.ends_with_code(1).prints("is an address, and no key");
    let write = format!("{line} --sign-elsewhere {}", file("seat.json"));
    let before = net.free("//Bob").await;
    net.miner(&write).await.succeeds().prints("Registry.register").prints("mettle submit");
    net.miner(&write).await.ends_with_code(1).prints("could not write");
    let sign = |name: &str, key: &Key| -> Vec<String> {
        let written: Value = serde_json::from_slice(&std::fs::read(file(name)).unwrap()).unwrap();
        let payloads = written.as_array().unwrap().iter().map(|call| call["payload"].as_str().unwrap());
        let payloads = payloads.map(|payload| hex::decode(payload.strip_prefix("0x").unwrap()).unwrap());
        let key = key.signing_key().unwrap();
        payloads.map(|payload| hex::encode(key.sign(&payload).to_bytes())).collect()
    };
    let submit = |name: &str, signatures: &[String]| {
        let flags: Vec<String> = signatures.iter().map(|each| format!("--signature {each}")).collect();
        format!("submit {} {}", file(name), flags.join(" "))
    };
    let good = sign("seat.json", &bob);
    assert_eq!(good.len(), 2);
    let one = net.examine(&submit("seat.json", &good[..1])).await;
    one.ends_with_code(1).prints("2 transactions, and 1 signatures");
    let of_alice = net.examine(&submit("seat.json", &sign("seat.json", &dev("//Alice")))).await;
    of_alice.ends_with_code(1).prints("did not sign this call");
    assert_eq!(net.free("//Bob").await, before, "nothing was submitted");

    net.examine(&submit("seat.json", &good)).await.succeeds().prints("2 of 2 transactions are included");
    let seat = net.seat("//Bob//hot").await.seat;
    assert_eq!((seat.coldkey, seat.stake), (bob.account(), Amount::mtl(10).0));
    let after = net.free("//Bob").await;
    // Repeated: the same blocks, and nothing more.
    let again = net.examine(&format!("{} --json", submit("seat.json", &good))).await.succeeds().json();
    assert_eq!(again["included"].as_array().unwrap().len(), 2);
    assert_eq!(net.free("//Bob").await, after);

    // Another call of the account is faster.
    let transfer = |key: &str| format!("transfer --key {key} --to //Alice --amount 1");
    let write = format!("{} --sign-elsewhere {}", transfer(&bob.address()), file("late.json"));
    net.miner(&write).await.succeeds();
    net.miner(&format!("{} --yes", transfer("//Bob"))).await.succeeds();
    let late = net.examine(&submit("late.json", &sign("late.json", &bob))).await;
    late.ends_with_code(1)
        .prints("another call of this account took its nonce")
        .prints("Write the file again");
    net.chain.shutdown().await;
}

#[test]
fn wrong_flags_are_refused_by_name() {
    let refused = |line: &str| {
        let words = ["mettle"].into_iter().chain(line.split_whitespace());
        let error = Cli::try_parse_from(words).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
        error.to_string()
    };
    for (line, expected) in [
        ("unstake --coldkey //Bob", "<--amount <AMOUNT>|--all>"),
        ("unstake --coldkey //Bob --all --amount 1", "cannot be used with"),
        ("unstake --all", "--coldkey"),
        ("unstake --coldkey //Bob --amount much", "not an amount"),
        ("stake --coldkey //Bob --amount 1 --yes --dry-run", "cannot be used with"),
        ("claim --former", "--coldkey"),
        ("nominate --amount 5", "--uid"),
        ("set-commission --coldkey //Bob --uid 1 --commission 101%", "12.5 %"),
        ("set-payout --coldkey //Bob --to bank", "possible values: account, stake"),
        ("run terms --cancel --set quorum=5", "cannot be used with"),
        ("run density", "unrecognized subcommand"),
        ("rotate-key --coldkey //Bob", "--new-key"),
        ("rewind --coldkey //Bob --uid 1", "<--to <WINDOW>|--withdraw>"),
        ("rewind --coldkey //Bob --uid 1 --to 3 --withdraw", "cannot be used with"),
        ("proxy add --coldkey //Bob --proxy x --may rule", "possible values"),
    ] {
        let text = refused(line);
        assert!(text.contains(expected), "{line}: {text}");
    }
}

#[tokio::test]
async fn a_wrong_chain_url_is_refused_with_the_right_form() {
    let line = "mettle status --key //Bob --chain http://127.0.0.1:1".split(' ');
    let cli = Cli::try_parse_from(line).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut ask = || Ok(None);
    let mut output = Output::new(false, &mut out, &mut err, &mut ask);
    let error = cli.execute(&mut output).await.unwrap_err();
    assert!(error.to_string().contains("ws://"), "{error:#}");
}
