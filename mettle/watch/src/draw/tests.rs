use super::*;
use crate::sample::TEXT;
use crate::sample::network;
use expect_test::{Expect, expect};
use protocol::{Block, SeatId, Window};
use ratatui::{Terminal, backend::TestBackend};

fn view(observer: &Observer) -> View<'_> {
    View {
        title: "Mettle localnet",
        observer,
        text: Some(TEXT),
        absences: BTreeMap::new(),
        block_time: Duration::from_millis(500),
        elapsed: Some(Duration::from_secs(132)),
        silence: Duration::ZERO,
    }
}

/// Four miners and three validators; a validator's process has ended, and a miner is silent.
fn seven() -> (Observer, BTreeMap<Uid, Absence>) {
    let mut observer = network();
    observer.seats.retain(|seat| seat.id.uid < Uid(7));
    let ended = Absence::Ended { again_in: Duration::from_secs(4) };
    let silent = Absence::Silent { since: Duration::from_secs(33) };
    (observer, BTreeMap::from([(Uid(2), ended), (Uid(5), silent)]))
}

/// The same with 33 external miners, of which one is away, and 40 windows.
fn forty() -> (Observer, BTreeMap<Uid, Absence>) {
    let (mut observer, mut absences) = seven();
    let model = observer.seats[6].clone();
    for uid in (7..40).map(Uid) {
        observer.seats.push(SeatView { id: SeatId { uid, registered_at: Block(0) }, ..model.clone() });
        observer.weights.insert(uid, 60_000);
        if let Some(view) = &mut observer.current {
            view.slots.push(uid);
        }
    }
    absences.insert(Uid(30), Absence::Away { since: Window(4) });
    let start = observer.held_out_loss(Window(0)).unwrap();
    for window in 0..40 {
        let loss = 2.5 + 5.49 * (-f64::from(window) / 4.0).exp() + 0.03 * f64::from(window).sin();
        let estimate = dataset::LossEstimate { loss, ..start };
        observer.held_out.insert(Window(window), BTreeMap::from([("validator-0".to_owned(), estimate)]));
    }
    (observer, absences)
}

fn drawn(view: &View<'_>, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let page = Page::of(view, width.into(), height.into());
    assert!(page.rows() <= height.into(), "{} rows", page.rows());
    terminal.draw(|frame| frame.render_widget(&page, frame.area())).unwrap();
    terminal
}

fn text(view: &View<'_>, width: u16, height: u16) -> String {
    let terminal = drawn(view, width, height);
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(width.into());
    let rows = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned());
    rows.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

fn check(
    (observer, absences): (Observer, BTreeMap<Uid, Absence>),
    width: u16,
    height: u16,
    expected: Expect,
) {
    let view = View { absences, ..view(&observer) };
    expected.assert_eq(&text(&view, width, height));
}

#[test]
fn seven_seats_at_200_by_50() {
    check(
        seven(),
        200,
        50,
        expect![[r#"
        Mettle localnet  one model everywhere  up 2 min 12 s
        window 6  ██████████████████░░  merge and vote  2 s of 20 s left  block #376
        held-out loss 3.07 ± 0.02  start 7.99  unigram baseline 6.32
        2.0 M tokens  16.4 k tokens/s  last merge: window 5, 4 contributions, 91.6 kB
         7.99│held-out loss
             │   ⠈⠒⠤⣀
             │       ⠑⠢⢄⡀
             │          ⠈⠒⠤⣀
             │              ⠑⠢⢄⡀
         7.44│                 ⠈⠑⠤⣀
             │                     ⠉⠢⢄⡀
             │                        ⠈⠑⠤⣀
             │                            ⠉⠢⢄⡀
         6.90│                               ⠈⠑⠤⡀
             │                                  ⠈⠒⢄⡀
             │                                     ⠈⠒⢄
             │⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⠉⠢⢄⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀
         6.35│                                           ⠉⠢⣀
             │                                              ⠑⠢⣀
             │                                                 ⠑⠤⡀
             │                                                   ⠈⠑⢄⡀
         5.80│                                                      ⠈⠒⢄⡀
             │                                                         ⠈⠢⢄
             │                                                            ⠉⠢⢄
             │                                                               ⠑⠢⢄⡀
         5.26│                                                                  ⠈⠑⠒⠤⣀
             │                                                                       ⠉⠑⠢⢄⣀
             │                                                                            ⠉⠒⠤⢄⡀
             │                                                                                ⠈⠑⠢⠤⣀
         4.71│                                                                                     ⠉⠒⠢⢄⡀
             │                                                                                         ⠈⠉⠒⠤⣀⡀
             │                                                                                              ⠈⠑⠢⠤⣀⡀
             │                                                                                                   ⠈⠑⠒⠤⢄⡀
         4.16│                                                                                                        ⠈⠉⠒⠢⢄⣀
             │                                                                                                              ⠉⠑⠢⠤⣀⡀
             │                                                                                                                   ⠈⠑⠒⠤⢄⡀
             │                                                                                                                        ⠈⠉⠒⠢⢄⣀
         3.62│                                                                                                                              ⠉⠑⠢⠤⢄⣀⣀⡀
             │                                                                                                                                     ⠈⠉⠉⠑⠒⠒⠢⠤⠤⢄⣀⣀⡀
             │                                                                                                                                                 ⠈⠉⠉⠑⠒⠒⠢⠤⠤⢄⣀⣀⡀
             │                                                                                                                                                             ⠈⠉⠉⠑⠒⠒⠒⠢⠤⠤⠤⠤⠤⣀⣀⣀⣀⣀
         3.07│                                                                                                                                                                               ⠉⠉⠉⠉⠉⠑⠒⠒⠒⠒⠒⠤⠤window
             └──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
             0                                                                                                3                                                                                                6

        miner              committed  attested  selected  score  weight  data wait         paid  now                     validator    attested  voted  minority       paid  now
        miner-0                    6         5         5  0.300    34 %        0 %   297.39 MTL  committed               validator-0         6      6         1  61.23 MTL  attested
        miner-1                    6         5         5  0.400    33 %        0 %  1184.71 MTL  committed               validator-1         6      6         1  61.23 MTL  voted
        miner-2                    6         5         5  0.500    32 %        0 %     0.00 MTL  no answer for 33 s      validator-2         6      6         1  61.23 MTL  ended, again in 4 s
        miner-3 (copycat)          6         5         5  0.600     0 %        0 %    <0.01 MTL  faulty"#]],
    );
}

#[test]
fn a_run_of_others_shows_what_chain_and_receipts_say() {
    let mut observer = network();
    observer.held_out.clear();
    for (window, loss) in [(3, 4.5), (4, 4.25), (5, 4.125)] {
        let estimate = dataset::LossEstimate { sequences: 16, loss, standard_error: 0.1 };
        observer.common.insert(Window(window), estimate);
    }
    let view = View { title: "code (run 3)", text: None, elapsed: None, ..view(&observer) };
    expect![[r#"
        code (run 3)  6 windows finalised
        window 6  ██████████████████░░  merge and vote  2 s of 20 s left  block #376
        loss on common sequences 4.12 ± 0.10  start 4.50
        last merge: window 5, 4 contributions, 91.6 kB
         4.50│loss on common sequences
             │        ⠉⠉⠑⠒⠢⠤⠤⣀⣀
             │                 ⠉⠉⠑⠒⠢⠤⠤⣀⣀
             │                          ⠉⠉⠒⠒⠢⠤⢄⣀⣀
             │                                   ⠉⠉⠒⠒⠢⠤⢄⣀⣀
             │                                            ⠉⠉⠒⠒⠒⠢⠤⠤⠤⠤⣀⣀⣀⣀⣀
             │                                                           ⠉⠉⠉⠉⠑⠒⠒⠒⠒⠤⠤⠤⠤⠤⣀⣀⣀⣀⡀
         4.12│                                                                             ⠈⠉⠉⠉⠉⠒⠒⠒⠒⠒⠤window
             └──────────────────────────────────────────────────────────────────────────────────────────────
             3                                              4                                              5

        miner              committed  attested  selected  score  weight  data wait         paid  now
        miner-0                    6         5         5  0.300    34 %        0 %   297.39 MTL  committed
        miner-1                    6         5         5  0.400    33 %        0 %  1184.71 MTL  committed
        miner-2                    6         5         5  0.500    32 %        0 %     0.00 MTL  missed
        miner-3 (copycat)          6         5         5  0.600     0 %        0 %    <0.01 MTL  faulty
        uid 7 (external)           0         0         0      -       -          -     0.50 MTL  missed

        validator    attested  voted  minority       paid  now
        validator-0         6      6         1  61.23 MTL  attested
        validator-1         6      6         1  61.23 MTL  voted
        validator-2         6      6         1  61.23 MTL  not attested"#]]
    .assert_eq(&text(&view, 100, 26));
}

#[test]
fn seven_seats_at_110_by_30() {
    check(
        seven(),
        110,
        30,
        expect![[r#"
        Mettle localnet  one model everywhere  up 2 min 12 s
        window 6  ██████████████████░░  merge and vote  2 s of 20 s left  block #376
        held-out loss 3.07 ± 0.02  start 7.99  unigram baseline 6.32
        2.0 M tokens  16.4 k tokens/s  last merge: window 5, 4 contributions, 91.6 kB
         7.99│held-out loss
             │     ⠈⠉⠒⠢⢄⣀
             │           ⠉⠑⠒⠤⢄⣀
             │                 ⠉⠑⠢⢄⡀
             │⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠈⠑⠢⢄⡀⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒
             │                         ⠈⠉⠒⠤⣀
         5.53│                              ⠉⠒⠤⣀
             │                                  ⠉⠑⠒⠢⠤⢄⣀⡀
             │                                         ⠈⠉⠑⠒⠢⠤⢄⣀⡀
             │                                                 ⠈⠉⠑⠒⠢⠤⢄⣀⡀
             │                                                         ⠈⠉⠑⠒⠒⠤⠤⣀⣀
             │                                                                  ⠉⠉⠒⠒⠒⠢⠤⠤⠤⠤⣀⣀⣀⣀
         3.07│                                                                                ⠉⠉⠉⠉⠑⠒⠒⠒⠒⠒⠒⠤⠤⠤⠤⠤⠤⠤window
             └────────────────────────────────────────────────────────────────────────────────────────────────────────
             0                                                   3                                                   6

        miner              committed  attested  selected  score  weight  data wait         paid  now
        miner-0                    6         5         5  0.300    34 %        0 %   297.39 MTL  committed
        miner-1                    6         5         5  0.400    33 %        0 %  1184.71 MTL  committed
        miner-2                    6         5         5  0.500    32 %        0 %     0.00 MTL  no answer for 33 s
        miner-3 (copycat)          6         5         5  0.600     0 %        0 %    <0.01 MTL  faulty

        validator    attested  voted  minority       paid  now
        validator-0         6      6         1  61.23 MTL  attested
        validator-1         6      6         1  61.23 MTL  voted
        validator-2         6      6         1  61.23 MTL  ended, again in 4 s"#]],
    );
}

#[test]
fn seven_seats_at_80_by_24() {
    check(
        seven(),
        80,
        24,
        expect![[r#"
        Mettle localnet  one model everywhere  up 2 min 12 s
        window 6  ██████████████████░░  merge and vote  2 s of 20 s left  block #376
        held-out loss 3.07 ± 0.02  start 7.99  unigram baseline 6.32
        2.0 M tokens  16.4 k tokens/s  last merge: window 5, 4 contributions, 91.6 kB
         7.99│held-out loss
             │      ⠈⠉⠑⠒⠤⠤⣀⡀
             │⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠈⠉⠒⠢⠤⣀⡀⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒
             │                   ⠈⠉⠒⠢⠤⣀⣀
             │                          ⠉⠉⠑⠒⠒⠤⠤⢄⣀⣀
             │                                    ⠉⠉⠉⠒⠒⠒⠤⠤⠤⣀⣀⣀
         3.07│                                                ⠉⠉⠉⠉⠑⠒⠒⠒⠒⠒⠢⠤⠤⠤⠤⠤⠤⠤⠤⠤window
             └──────────────────────────────────────────────────────────────────────────
             0                                    3                                    6

        miner              selected  score  weight         paid  now
        miner-0                   5  0.300    34 %   297.39 MTL  committed
        miner-1                   5  0.400    33 %  1184.71 MTL  committed
        miner-2                   5  0.500    32 %     0.00 MTL  no answer for 33 s
        miner-3 (copycat)         5  0.600     0 %    <0.01 MTL  faulty

        validator    attested  voted  minority       paid  now
        validator-0         6      6         1  61.23 MTL  attested
        validator-1         6      6         1  61.23 MTL  voted
        validator-2         6      6         1  61.23 MTL  ended, again in 4 s"#]],
    );
}

#[test]
fn seven_seats_at_60_by_20() {
    check(
        seven(),
        60,
        20,
        expect![[r#"
        Mettle localnet  one model everywhere  up 2 min 12 s
        window 6  merge and vote  2 s of 20 s left
        held-out loss 3.07 ± 0.02  start 7.99  unigram baseline 6.32
        2.0 M tokens  16.4 k tokens/s

        miner              weight         paid  now
        miner-0              34 %   297.39 MTL  committed
        miner-1              33 %  1184.71 MTL  committed
        miner-2              32 %     0.00 MTL  no answer for 33 s
        miner-3 (copycat)     0 %    <0.01 MTL  faulty

        validator    attested  voted       paid  now
        validator-0         6      6  61.23 MTL  attested
        validator-1         6      6  61.23 MTL  voted
        validator-2         6      6  61.23 MTL  ended, again in 4 s"#]],
    );
}

#[test]
fn seven_seats_at_40_by_14() {
    check(
        seven(),
        40,
        14,
        expect![[r#"
        Mettle localnet  one model everywhere
        window 6  merge and vote
        held-out loss 3.07 ± 0.02  start 7.99
        2.0 M tokens  16.4 k tokens/s
        miner              now
        miner-0            committed
        miner-1            committed
        miner-2            no answer for 33 s
        miner-3 (copycat)  faulty

        validator    now
        validator-0  attested
        validator-1  voted
        validator-2  ended, again in 4 s"#]],
    );
}

#[test]
fn forty_seats_at_200_by_50() {
    check(
        forty(),
        200,
        50,
        expect![[r#"
        Mettle localnet  one model everywhere  up 2 min 12 s
        window 6  ██████████████████░░  merge and vote  2 s of 20 s left  block #376
        held-out loss 2.53 ± 0.02  start 7.99  unigram baseline 6.32
        2.0 M tokens  16.4 k tokens/s  last merge: window 5, 4 contributions, 91.6 kB
         3.27│held-out loss                          ⠈⠑⠢⠤⣀
             │                                            ⠉⠑⠢⠤⣀
             │                                                 ⠉⠑⠒⠢⠤⣀⣀⣀⡀
             │                                                         ⠈⠉⠉⠉⠉⠑⠒⠒⠒⠒⠢⠤⠤⠤⠤⢄⣀⣀⣀⣀⡀
         2.47│                                                                             ⠈⠉⠉⠉⠉⠑⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⣀⣀⣀⣀⣀⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠒⠒⠒⠒⠒⠤⠤⠤⠤⠤⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⢄⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⡠⠤window
             └──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
             0                                                                                               20                                                                                               39

        miner              committed  attested  selected  score  weight  data wait         paid  now                      validator    attested  voted  minority       paid  now
        miner-0                    6         5         5  0.300     3 %        0 %   297.39 MTL  committed                validator-0         6      6         1  61.23 MTL  attested
        miner-1                    6         5         5  0.400     3 %        0 %  1184.71 MTL  committed                validator-1         6      6         1  61.23 MTL  voted
        miner-2                    6         5         5  0.500     3 %        0 %     0.00 MTL  no answer for 33 s       validator-2         6      6         1  61.23 MTL  ended, again in 4 s
        miner-3 (copycat)          6         5         5  0.600     0 %        0 %    <0.01 MTL  faulty
        uid 7 (external)           0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 8 (external)           0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 9 (external)           0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 10 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 11 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 12 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 13 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 14 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 15 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 16 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 17 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 18 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 19 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 20 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 21 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 22 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 23 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 24 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 25 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 26 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 27 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 28 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 29 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 30 (external)          0         0         0      -     3 %          -    <0.01 MTL  away since window 4
        uid 31 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 32 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 33 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 34 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 35 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 36 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 37 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 38 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 39 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed"#]],
    );
}

#[test]
fn forty_seats_at_110_by_30() {
    check(
        forty(),
        110,
        30,
        expect![[r#"
        Mettle localnet  one model everywhere  up 2 min 12 s
        window 6  ██████████████████░░  merge and vote  2 s of 20 s left  block #376
        held-out loss 2.53 ± 0.02  start 7.99  unigram baseline 6.32
        2.0 M tokens  16.4 k tokens/s  last merge: window 5, 4 contributions, 91.6 kB
        miner              committed  attested  selected  score  weight  data wait         paid  now
        miner-2                    6         5         5  0.500     3 %        0 %     0.00 MTL  no answer for 33 s
        miner-3 (copycat)          6         5         5  0.600     0 %        0 %    <0.01 MTL  faulty
        uid 7 (external)           0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 8 (external)           0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 9 (external)           0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 10 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 11 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 12 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 13 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 14 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 15 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 16 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 17 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 18 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 19 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 20 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 21 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 22 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 23 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 24 (external)          0         0         0      -     3 %          -    <0.01 MTL  missed
        uid 30 (external)          0         0         0      -     3 %          -    <0.01 MTL  away since window 4
        … 16 more: 2 committed, 14 missed
        validator    attested  voted  minority       paid  now
        validator-2         6      6         1  61.23 MTL  ended, again in 4 s
        … 2 more: 1 attested, 1 voted"#]],
    );
}

#[test]
fn forty_seats_at_80_by_24() {
    check(
        forty(),
        80,
        24,
        expect![[r#"
        Mettle localnet  one model everywhere  up 2 min 12 s
        window 6  ██████████████████░░  merge and vote  2 s of 20 s left  block #376
        held-out loss 2.53 ± 0.02  start 7.99  unigram baseline 6.32
        2.0 M tokens  16.4 k tokens/s  last merge: window 5, 4 contributions, 91.6 kB
        miner              selected  score  weight         paid  now
        miner-2                   5  0.500     3 %     0.00 MTL  no answer for 33 s
        miner-3 (copycat)         5  0.600     0 %    <0.01 MTL  faulty
        uid 7 (external)          0      -     3 %    <0.01 MTL  missed
        uid 8 (external)          0      -     3 %    <0.01 MTL  missed
        uid 9 (external)          0      -     3 %    <0.01 MTL  missed
        uid 10 (external)         0      -     3 %    <0.01 MTL  missed
        uid 11 (external)         0      -     3 %    <0.01 MTL  missed
        uid 12 (external)         0      -     3 %    <0.01 MTL  missed
        uid 13 (external)         0      -     3 %    <0.01 MTL  missed
        uid 14 (external)         0      -     3 %    <0.01 MTL  missed
        uid 15 (external)         0      -     3 %    <0.01 MTL  missed
        uid 16 (external)         0      -     3 %    <0.01 MTL  missed
        uid 17 (external)         0      -     3 %    <0.01 MTL  missed
        uid 18 (external)         0      -     3 %    <0.01 MTL  missed
        uid 30 (external)         0      -     3 %    <0.01 MTL  away since window 4
        … 22 more: 2 committed, 20 missed
        validator    attested  voted  minority       paid  now
        validator-2         6      6         1  61.23 MTL  ended, again in 4 s
        … 2 more: 1 attested, 1 voted"#]],
    );
}

#[test]
fn forty_seats_at_60_by_20() {
    check(
        forty(),
        60,
        20,
        expect![[r#"
        Mettle localnet  one model everywhere  up 2 min 12 s
        window 6  merge and vote  2 s of 20 s left
        held-out loss 2.53 ± 0.02  start 7.99  unigram baseline 6.32
        2.0 M tokens  16.4 k tokens/s
        miner              weight         paid  now
        miner-2               3 %     0.00 MTL  no answer for 33 s
        miner-3 (copycat)     0 %    <0.01 MTL  faulty
        uid 7 (external)      3 %    <0.01 MTL  missed
        uid 8 (external)      3 %    <0.01 MTL  missed
        uid 9 (external)      3 %    <0.01 MTL  missed
        uid 10 (external)     3 %    <0.01 MTL  missed
        uid 11 (external)     3 %    <0.01 MTL  missed
        uid 12 (external)     3 %    <0.01 MTL  missed
        uid 13 (external)     3 %    <0.01 MTL  missed
        uid 14 (external)     3 %    <0.01 MTL  missed
        uid 30 (external)     3 %    <0.01 MTL  away since window 4
        … 26 more: 2 committed, 24 missed
        validator    attested  voted       paid  now
        validator-2         6      6  61.23 MTL  ended, again in 4 s
        … 2 more: 1 attested, 1 voted"#]],
    );
}

#[test]
fn forty_seats_at_40_by_14() {
    check(
        forty(),
        40,
        14,
        expect![[r#"
        Mettle localnet  one model everywhere
        window 6  merge and vote
        held-out loss 2.53 ± 0.02  start 7.99
        2.0 M tokens  16.4 k tokens/s
        miner              now
        miner-2            no answer for 33 s
        miner-3 (copycat)  faulty
        uid 7 (external)   missed
        uid 8 (external)   missed
        uid 30 (external)  away since window 4
        … 32 more: 2 committed, 30 missed
        validator    now
        validator-2  ended, again in 4 s
        … 2 more: 1 attested, 1 voted"#]],
    );
}

/// Every seat has a row or is counted in one; seats in trouble always have a row with their whole name.
#[test]
fn no_seat_is_lost_at_any_size() {
    let (observer, absences) = forty();
    for width in [20, 33, 40, 60, 80, 110, 200] {
        for height in [12, 14, 20, 24, 30, 50, 60] {
            let text = text(&View { absences: absences.clone(), ..view(&observer) }, width, height) + "\n";
            for name in ["validator-2", "miner-2", "uid 30"] {
                assert!(text.lines().any(|line| line.contains(name)), "{name} at {width}×{height}:\n{text}");
            }
            let rows = observer.seats.iter().filter(|seat| {
                let name = observer.name_of(seat.id.uid);
                text.replace(['\n', '('], " ").contains(&format!("{name} "))
            });
            let more =
                text.split("… ").skip(1).filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok());
            assert_eq!(rows.count() + more.sum::<usize>(), 40, "at {width}×{height}:\n{text}");
        }
    }
}

#[test]
fn a_row_in_trouble_is_red_and_no_other() {
    let (observer, absences) = seven();
    let terminal = drawn(&View { absences, ..view(&observer) }, 80, 24);
    let buffer = terminal.backend().buffer();
    for y in 0..24 {
        let row: String = (0..80).map(|x| buffer[(x, y)].symbol()).collect();
        let is_trouble = ["no answer", "ended", "faulty"].iter().any(|word| row.contains(word));
        assert_eq!(buffer[(0, y)].fg == Color::Red, is_trouble, "{row}");
    }
}

#[test]
fn a_silent_chain_and_different_models_are_shown() {
    let mut observer = network();
    let silent = View { silence: Duration::from_secs(12), ..view(&observer) };
    let title = text(&silent, 80, 1);
    assert_eq!(title, "Mettle localnet  no answer from the chain for 12 s  up 2 min 12 s");
    observer.lineages.insert(Window(3), protocol::Digest::default());
    let other = BTreeMap::from([(Window(3), protocol::Digest::of(b"other"))]);
    observer.held.insert("miner-0".into(), other);
    assert_eq!(text(&view(&observer), 80, 1), "Mettle localnet  MODELS DIFFER  up 2 min 12 s");
}

#[test]
fn before_the_first_window_there_is_no_curve() {
    let mut observer = network();
    (observer.current, observer.last_merge) = (None, None);
    observer.block = Block(60);
    observer.outcomes.clear();
    observer.held_out.clear();
    observer.trained.clear();
    expect![[r#"
        Mettle localnet  one model everywhere  up 2 min 12 s
        the run starts in 20 s  block #60
        held-out loss: not measured yet  unigram baseline 6.32
        0 tokens  no window is finalised yet

        miner              committed  selected  score  weight         paid  now
        miner-0                    6         5  0.300    34 %   297.39 MTL
        miner-1                    6         5  0.400    33 %  1184.71 MTL
        miner-2                    6         5  0.500    32 %     0.00 MTL
        miner-3 (copycat)          6         5  0.600     0 %    <0.01 MTL
        uid 7 (external)           0         0      -       -     0.50 MTL

        validator    attested  voted  minority       paid  now
        validator-0         6      6         1  61.23 MTL
        validator-1         6      6         1  61.23 MTL
        validator-2         6      6         1  61.23 MTL"#]]
    .assert_eq(&text(&view(&observer), 80, 24));
}
