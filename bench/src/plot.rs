//! Line charts as SVG, with logarithmic axes.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
/// Space for the labels of the axes, the title and the legend.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 44.0;
/// Distinguishable in print and by people who see few colours.
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// An axis over whole powers of ten.
struct Axis {
    /// The powers at its ends.
    first: i32,
    last: i32,
    /// The coordinates of its ends.
    start: f64,
    end: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for power in values.filter(|value| *value > 0.0).map(f64::log10) {
            (least, most) = (least.min(power), most.max(power));
        }
        if least > most {
            (least, most) = (0.0, 1.0);
        }
        let first = least.floor() as i32;
        Self { first, last: (most.ceil() as i32).max(first + 1), start, end }
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value.max(f64::MIN_POSITIVE).log10() - f64::from(self.first))
            / f64::from(self.last - self.first);
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// The coordinates and labels of its powers of ten.
    fn marks(&self) -> impl Iterator<Item = (f64, String)> {
        (self.first..=self.last).map(|power| (self.place(10f64.powi(power)), label(power)))
    }
}

fn label(power: i32) -> String {
    match power {
        ..0 => format!("{}", 10f64.powi(power)),
        0..3 => format!("{:.0}", 10f64.powi(power)),
        3..6 => format!("{:.0} k", 10f64.powi(power - 3)),
        _ => format!("{:.0} M", 10f64.powi(power - 6)),
    }
}

/// Returns a chart of the lines, each with its name.
pub fn svg(title: &str, horizontal: &str, lines: &[(&str, Vec<(f64, f64)>)]) -> String {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let x = Axis::over(points().map(|point| point.0), LEFT, WIDTH - RIGHT);
    let y = Axis::over(points().map(|point| point.1), HEIGHT - BOTTOM, TOP);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}</text>\n"
    );
    let mut put = |line: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    };
    for (place, label) in y.marks() {
        let (end, before) = (WIDTH - RIGHT, LEFT - 6.0);
        put(format_args!("<path d=\"M{LEFT} {place:.1}H{end}\" stroke=\"#ddd\"/>"));
        put(format_args!("<text x=\"{before}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", place + 4.0));
    }
    for (place, label) in x.marks() {
        let below = HEIGHT - BOTTOM + 16.0;
        put(format_args!("<text x=\"{place:.1}\" y=\"{below}\" text-anchor=\"middle\">{label}</text>"));
    }
    let (middle, bottom) = (f64::midpoint(LEFT, WIDTH - RIGHT), HEIGHT - 8.0);
    put(format_args!("<text x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">{horizontal}</text>"));
    for (number, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let path: Vec<String> =
            points.iter().map(|point| format!("{:.1},{:.1}", x.place(point.0), y.place(point.1))).collect();
        put(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        ));
        for point in &path {
            let (left, top) = point.split_once(',').unwrap_or_default();
            put(format_args!("<circle cx=\"{left}\" cy=\"{top}\" r=\"3\" fill=\"{colour}\"/>"));
        }
        let left = LEFT + 130.0 * number as f64;
        put(format_args!("<circle cx=\"{left}\" cy=\"36\" r=\"4\" fill=\"{colour}\"/>"));
        put(format_args!("<text x=\"{}\" y=\"40\">{name}</text>", left + 10.0));
    }
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_drawn_between_the_axes() {
        let lines = [("a", vec![(1_000.0, 5.0), (1e7, 50.0)]), ("b", vec![(1_000.0, 500.0)])];
        let chart = svg("Title", "keys", &lines);
        // 1,000 is at the left end and 10 million at the right, one row for each power of ten.
        assert!(chart.contains("points=\"64.0,"), "{chart}");
        assert!(chart.contains(" 616.0,"), "{chart}");
        for label in ["1 k", "10 M", "Title", "keys", ">1<", ">10<", ">100<", ">1 k<"] {
            assert!(chart.contains(label), "{label}: {chart}");
        }
        assert_eq!(chart.matches("<polyline").count(), 2);
    }

    #[test]
    fn chart_without_points_is_empty() {
        assert!(!svg("Title", "keys", &[("a", Vec::new())]).contains("NaN"));
    }
}
