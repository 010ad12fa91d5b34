//! How the cost of a check grows with the number of keys, from 1,000 to 10 million, next to
//! `governor`. Prints Markdown, and draws the curves.
#![expect(clippy::print_stdout, reason = "this program prints tables")]

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use pacegate_bench::contender::Kind;
use pacegate_bench::growth::{KINDS, Point, curve, measure};
use pacegate_bench::table::{Table, grouped};
use pacegate_bench::{machine, plot};

/// Measures time, memory and the longest insertion by the number of keys.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where the curves are drawn, as SVG files.
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/plots")]
    plots: PathBuf,
    /// Only measure one contender with a number of keys, and print the point as JSON.
    #[arg(long, num_args = 2, value_names = ["NAME", "KEYS"])]
    point: Option<Vec<String>>,
}

/// A figure that is drawn: its file, its title and its value.
type Figure = (&'static str, &'static str, fn(&Point) -> f64);

const FIGURES: [Figure; 3] = [
    ("keys-nanoseconds.svg", "Nanoseconds per check, keys chosen uniformly", |point| point.nanos),
    ("keys-bytes.svg", "Bytes per key", |point| point.bytes),
    ("keys-longest.svg", "Microseconds of the longest insertion of a key", |point| point.longest),
];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(point) = arguments.point {
        let [name, keys] = point.as_slice() else { bail!("--point takes NAME KEYS") };
        let point = measure(Kind::named(name)?, keys.parse().context("KEYS is a number")?)?;
        println!("{}", serde_json::to_string(&point)?);
        return Ok(());
    }
    println!("{}\n", machine::description());
    let curves = KINDS.map(|kind| (kind, curve(kind)));
    let mut drawn = Vec::new();
    let headings = ["keys", "contender", "ns per check", "bytes per key", "p99.99 µs", "longest µs"];
    let mut table = Table::new(headings);
    for (kind, points) in curves {
        let points = points?;
        for point in &points {
            let figures = [point.nanos, point.bytes, point.p9999, point.longest];
            let cells = figures.map(|figure| format!("{figure:.1}"));
            table.row([grouped(point.keys as u64), kind.name().to_owned()].into_iter().chain(cells));
        }
        drawn.push((kind.name(), points));
    }
    println!("{table}");
    std::fs::create_dir_all(&arguments.plots)?;
    for (file, title, value) in FIGURES {
        let lines: Vec<(&str, Vec<(f64, f64)>)> = drawn
            .iter()
            .map(|(name, points)| {
                (*name, points.iter().map(|point| (point.keys as f64, value(point))).collect())
            })
            .collect();
        let path = arguments.plots.join(file);
        std::fs::write(&path, plot::svg(title, "keys", &lines))
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}
