//! Losses against tokens as an SVG, small enough to stand in the repository.

use std::fmt::Write as _;

/// One variant: its name, and the points of its line.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 310.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 46.0;
/// Told apart without red and green (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"];
/// The steep beginning is left out: lines that end near each other could not be told apart beside it.
const SHOWN_FROM: f64 = 0.2;

/// A plot of held-out losses in nats per token. Empty lines are left out; none at all make an empty plot.
pub fn svg(title: &str, lines: &[Line]) -> String {
    let lines: Vec<&Line> = lines.iter().filter(|line| !line.points.is_empty()).collect();
    let last = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
    let shown = |line: &Line| -> Vec<(f64, f64)> {
        line.points.iter().copied().filter(|point| point.0 >= SHOWN_FROM * last).collect()
    };
    let losses: Vec<f64> = lines.iter().flat_map(|line| shown(line)).map(|point| point.1).collect();
    let (low, high) =
        losses.iter().fold((f64::MAX, f64::MIN), |(low, high), loss| (low.min(*loss), high.max(*loss)));
    let (low, high) = if low < high { (low, high) } else { (0.0, 1.0) };
    let step = tick_step((high - low) / 5.0);
    let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);

    let (first, last) = (SHOWN_FROM * last, if last > 0.0 { last } else { 1.0 });
    let x = |tokens: f64| LEFT + (tokens - first) / (last - first) * (WIDTH - LEFT - RIGHT);
    let y = |loss: f64| TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    let mut loss = low;
    while loss <= high + step / 2.0 {
        let at = y(loss);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#dddddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{loss:.2}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
        );
        loss += step;
    }
    let step = tick_step((last - first) / 5.0);
    let mut tokens = (first / step).ceil() * step;
    while tokens <= last {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x(tokens),
            HEIGHT - BOTTOM + 18.0,
            millions(tokens),
        );
        tokens += step;
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">tokens of all workers, millions; held-out loss in nats a token, mean over seeds</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 10.0,
    );

    // In the legend the best stands lowest, as in the plot.
    let mut order: Vec<usize> = (0..lines.len()).collect();
    let end = |at: &usize| lines[*at].points.last().map_or(0.0, |point| point.1);
    order.sort_by(|one, other| end(other).total_cmp(&end(one)));
    for (place, at) in order.into_iter().enumerate() {
        let line = lines[at];
        let colour = COLOURS[at % COLOURS.len()];
        let dashes = if at < COLOURS.len() { "" } else { " stroke-dasharray=\"6 3\"" };
        let points: Vec<String> =
            shown(line).iter().map(|(tokens, loss)| format!("{:.1},{:.1}", x(*tokens), y(*loss))).collect();
        let row = TOP + 8.0 + 18.0 * place as f64;
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

/// 1, 2 or 5 times a power of ten, about as large as asked.
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
    fn a_plot_has_a_line_and_a_name_for_each_variant_and_no_number_that_is_none() {
        let line = |name: &str, by: f64| Line {
            name: name.into(),
            points: (1..=10).map(|at| (f64::from(at) * 1e5, 3.0 - by * f64::from(at))).collect(),
        };
        let svg_of = |lines: &[Line]| svg("R & H < 1", lines);
        let two =
            svg_of(&[line("dense", 0.1), line("ours", 0.09), Line { name: "none".into(), points: vec![] }]);
        assert_eq!(two.matches("<polyline").count(), 2);
        assert!(two.contains("R &amp; H &lt; 1") && two.contains("ours 2.100"));
        assert!(two.find("ours 2.100") < two.find("dense 2.000"), "the best stands lowest");
        for nothing in [svg_of(&[]), svg_of(&[Line { name: "one".into(), points: vec![(5.0, 2.0)] }])] {
            assert!(!nothing.contains("NaN") && !nothing.contains("inf"), "{nothing}");
        }
    }
}
