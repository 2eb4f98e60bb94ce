//! Plots of losses against tokens or learning rates, as SVG files small enough for the repository.

use std::fmt::Write as _;

/// The line of one variant: tokens and losses.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// One scheme at several learning rates: rates and final losses, by seed.
pub struct Rates {
    pub name: String,
    pub seeds: Vec<Vec<(f64, f64)>>,
}

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 310.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 46.0;
/// A palette for colour-blind readers (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"];
/// Share of the tokens at the start that the plot omits: their steep losses would hide small final differences.
const SHOWN_FROM: f64 = 0.2;

/// Plots held-out losses in nats per token. Omits lines without points; without any line, the plot is empty.
pub fn svg(title: &str, lines: &[Line]) -> String {
    let lines: Vec<&Line> = lines.iter().filter(|line| !line.points.is_empty()).collect();
    let last = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
    let shown = |line: &Line| -> Vec<(f64, f64)> {
        line.points.iter().copied().filter(|point| point.0 >= SHOWN_FROM * last).collect()
    };
    let vertical = Vertical::of(lines.iter().flat_map(|line| shown(line)).map(|point| point.1));
    let (first, last) = (SHOWN_FROM * last, if last > 0.0 { last } else { 1.0 });
    let x = |tokens: f64| LEFT + (tokens - first) / (last - first) * (WIDTH - LEFT - RIGHT);
    let step = tick_step((last - first) / 5.0);
    let mut ticks = Vec::new();
    let mut tokens = (first / step).ceil() * step;
    while tokens <= last {
        ticks.push((x(tokens), millions(tokens)));
        tokens += step;
    }
    let below = "tokens of all workers, millions; held-out loss in nats a token, mean over seeds";
    let mut svg = frame(title, &vertical, &ticks, below);

    // The legend lists the lowest loss last, as in the plot.
    let mut order: Vec<usize> = (0..lines.len()).collect();
    let end = |at: &usize| lines[*at].points.last().map_or(0.0, |point| point.1);
    order.sort_by(|one, other| end(other).total_cmp(&end(one)));
    for (row, at) in order.into_iter().enumerate() {
        let line = lines[at];
        let colour = COLOURS[at % COLOURS.len()];
        let dashes = if at < COLOURS.len() { "" } else { " stroke-dasharray=\"6 3\"" };
        let points: Vec<String> = shown(line)
            .iter()
            .map(|(tokens, loss)| format!("{:.1},{:.1}", x(*tokens), vertical.y(*loss)))
            .collect();
        let row = TOP + 8.0 + 18.0 * row as f64;
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"{dashes}/>\n\
             <path d=\"M{:.1} {row:.1}h18\" stroke=\"{colour}\" stroke-width=\"3\"{dashes}/><text x=\"{:.1}\" y=\"{:.1}\">{} {:.3}</text>",
            points.join(" "),
            WIDTH - RIGHT + 12.0,
            WIDTH - RIGHT + 36.0,
            row + 4.0,
            escaped(&line.name),
            end(&at),
        );
    }
    svg + "</svg>\n"
}

/// Plots final held-out losses against learning rates, on a logarithmic axis: a line for each seed of each scheme, a
/// dot for each run.
pub fn rates_svg(title: &str, schemes: &[Rates]) -> String {
    let points = |scheme: &Rates| scheme.seeds.iter().flatten().copied().collect::<Vec<_>>();
    let all: Vec<(f64, f64)> = schemes.iter().flat_map(points).collect();
    let vertical = Vertical::of(all.iter().map(|point| point.1));
    let mut rates: Vec<f64> = all.iter().map(|point| point.0).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let (first, last) =
        (rates.first().map_or(0.0, |rate| rate.log2()), rates.last().map_or(0.0, |rate| rate.log2()));
    let across = if first < last { last - first } else { 1.0 };
    let x = |rate: f64| LEFT + 20.0 + (rate.log2() - first) / across * (WIDTH - LEFT - RIGHT - 40.0);
    let ticks: Vec<(f64, String)> = rates.iter().map(|rate| (x(*rate), rate.to_string())).collect();
    let below = "learning rate; held-out loss at the end in nats a token, a line for each seed";
    let mut svg = frame(title, &vertical, &ticks, below);

    // The legend lists the lowest loss last, as in the plot.
    let mut order: Vec<usize> = (0..schemes.len()).filter(|at| !points(&schemes[*at]).is_empty()).collect();
    let best = |at: &usize| points(&schemes[*at]).iter().map(|point| point.1).fold(f64::MAX, f64::min);
    order.sort_by(|one, other| best(other).total_cmp(&best(one)));
    for (row, at) in order.into_iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        for seed in &schemes[at].seeds {
            let points: Vec<(f64, f64)> =
                seed.iter().map(|(rate, loss)| (x(*rate), vertical.y(*loss))).collect();
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.2\"/>",
                path.join(" ")
            );
            for (x, y) in points {
                let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
        }
        let row = TOP + 8.0 + 18.0 * row as f64;
        let _ = writeln!(
            svg,
            "<path d=\"M{:.1} {row:.1}h18\" stroke=\"{colour}\" stroke-width=\"3\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT + 12.0,
            WIDTH - RIGHT + 36.0,
            row + 4.0,
            escaped(&schemes[at].name),
        );
    }
    svg + "</svg>\n"
}

/// The vertical axis: its range of losses, in round steps.
struct Vertical {
    low: f64,
    high: f64,
    step: f64,
}

impl Vertical {
    fn of(losses: impl Iterator<Item = f64>) -> Vertical {
        let (low, high) =
            losses.fold((f64::MAX, f64::MIN), |(low, high), loss| (low.min(loss), high.max(loss)));
        let (low, high) = if low < high { (low, high) } else { (0.0, 1.0) };
        let step = tick_step((high - low) / 5.0);
        Vertical { low: (low / step).floor() * step, high: (high / step).ceil() * step, step }
    }

    fn y(&self, loss: f64) -> f64 {
        TOP + (self.high - loss) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)
    }
}

/// Returns the start of the SVG: title, grid, ticks, caption.
fn frame(title: &str, vertical: &Vertical, ticks: &[(f64, String)], below: &str) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    let mut loss = vertical.low;
    while loss <= vertical.high + vertical.step / 2.0 {
        let at = vertical.y(loss);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#dddddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{loss:.2}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
        );
        loss += vertical.step;
    }
    for (x, text) in ticks {
        let y = HEIGHT - BOTTOM + 18.0;
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{text}</text>");
    }
    let (x, y) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0);
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{below}</text>");
    svg
}

/// Returns 1, 2 or 5 times a power of ten, near `about`.
fn tick_step(about: f64) -> f64 {
    let power = 10f64.powf(about.log10().floor());
    let times = about / power;
    power
        * if times < 1.5 {
            1.0
        } else if times < 3.5 {
            2.0
        } else if times < 7.5 {
            5.0
        } else {
            10.0
        }
}

fn millions(tokens: f64) -> String {
    let text = format!("{:.2}", tokens / 1e6);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_between_ticks_are_round() {
        for (about, step) in [(0.013, 0.01), (0.02, 0.02), (0.4, 0.5), (90_000.0, 100_000.0)] {
            assert!((tick_step(about) / step - 1.0).abs() < 1e-9, "{about}");
        }
        assert_eq!(millions(2_000_000.0), "2");
        assert_eq!(millions(1_250_000.0), "1.25");
    }

    #[test]
    fn a_plot_has_a_line_and_a_name_for_each_variant_and_only_finite_numbers() {
        let line = |name: &str, by: f64| Line {
            name: name.into(),
            points: (1..=10).map(|at| (f64::from(at) * 1e5, 3.0 - by * f64::from(at))).collect(),
        };
        let svg_of = |lines: &[Line]| svg("R & H < 1", lines);
        let two =
            svg_of(&[line("dense", 0.1), line("ours", 0.09), Line { name: "none".into(), points: vec![] }]);
        assert_eq!(two.matches("<polyline").count(), 2);
        assert!(two.contains("R &amp; H &lt; 1") && two.contains("ours 2.100"));
        assert!(two.find("ours 2.100") < two.find("dense 2.000"), "the lowest loss is last");
        for nothing in [svg_of(&[]), svg_of(&[Line { name: "one".into(), points: vec![(5.0, 2.0)] }])] {
            assert!(!nothing.contains("NaN") && !nothing.contains("inf"), "{nothing}");
        }
    }

    #[test]
    fn a_plot_of_rates_has_a_dot_for_each_run_and_one_tick_for_each_rate() {
        let scheme = |name: &str, seeds| Rates { name: name.into(), seeds };
        let svg = rates_svg(
            "rates",
            &[
                scheme("dense", vec![vec![(0.002, 2.5), (0.004, 2.3)], vec![(0.004, 2.4)]]),
                scheme("none", vec![]),
                scheme("ours", vec![vec![(0.004, 2.2), (0.008, 2.6)]]),
            ],
        );
        assert_eq!(svg.matches("<circle").count(), 5);
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert_eq!(svg.matches(">0.004<").count(), 1);
        assert!(
            svg.find(">ours<") > svg.find(">dense<") && !svg.contains("none<"),
            "the lowest loss is last"
        );
        for nothing in [rates_svg("none", &[]), rates_svg("one", &[scheme("one", vec![vec![(0.004, 2.0)]])])]
        {
            assert!(!nothing.contains("NaN") && !nothing.contains("inf"), "{nothing}");
        }
    }
}
