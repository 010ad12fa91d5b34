//! Writes an access log in the combined format, which is the same for the same seed. Few users send
//! most requests, and there are days and nights, bursts and scrapers.
//!
//! `cargo run --release -p pacegate-simulate --example generate_log -- 5000000 > access.log`

#![allow(clippy::print_stderr, reason = "an example prints errors")]

use std::f64::consts::TAU;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

const USERS: u64 = 50_000;
const SCRAPERS: u64 = 3;
const DAY: f64 = 86_400.0;
const PATHS: [&str; 8] = [
    "/api/v1/orders",
    "/api/v1/orders/{}",
    "/api/v1/products?page={}",
    "/api/v1/products/{}",
    "/api/v1/cart",
    "/login",
    "/",
    "/static/app.js",
];

fn main() -> ExitCode {
    let lines = std::env::args().nth(1).and_then(|text| text.parse::<u64>().ok());
    let seed = std::env::args().nth(2).map_or(Some(7), |text| text.parse().ok());
    let (Some(lines), Some(seed)) = (lines, seed) else {
        eprintln!("usage: generate_log LINES [SEED]");
        return ExitCode::from(2);
    };
    match write(lines, seed) {
        // A reader such as `head` can stop early.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("error: {error}");
            ExitCode::from(1)
        }
        _ => ExitCode::SUCCESS,
    }
}

fn write(lines: u64, seed: u64) -> std::io::Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut output = BufWriter::with_capacity(1 << 20, std::io::stdout().lock());
    // A burst is a user that repeats a request for a while.
    let mut burst: Option<(u64, u64)> = None;
    for line in 0..lines {
        let part = line as f64 / lines as f64;
        // There are more lines per second at noon than at night.
        let seconds = DAY * (part + (part * TAU).sin() / TAU * 0.6);
        if burst.is_none() && random.f64() < 0.0005 {
            burst = Some((user(&mut random), random.u64(50..400)));
        }
        let scraper = random.f64() < 0.06;
        let who = match &mut burst {
            Some((who, left)) if !scraper && random.f64() < 0.5 => {
                *left -= 1;
                *who
            }
            _ => user(&mut random),
        };
        burst = burst.filter(|(_, left)| *left > 0);
        // A line is written when a request ends, and contains the time of its start.
        let duration = if random.f64() < 0.05 { random.u64(0..3) } else { 0 };
        let time = clock((seconds as u64).saturating_sub(duration));
        if scraper {
            let number = random.u64(0..SCRAPERS);
            let path = random.u64(0..100_000);
            writeln!(
                output,
                "203.0.113.{number} - - [{time}] \"GET /api/v1/products/{path} HTTP/1.1\" 200 512 \"-\" \"python-requests/2.31\""
            )?;
            continue;
        }
        // Some users share an address, as in an office.
        let address = if who % 10 == 0 { who % 50 } else { who };
        let (high, low) = (address / 250, address % 250 + 1);
        let (path, number) = (random.choice(PATHS).unwrap_or("/"), random.u64(0..5_000));
        let path = path.replace("{}", &number.to_string());
        let method = if path == "/login" { "POST" } else { "GET" };
        let status = if random.f64() < 0.02 { 404 } else { 200 };
        writeln!(
            output,
            "10.{}.{}.{low} - user{who} [{time}] \"{method} {path} HTTP/1.1\" {status} {} \"https://shop.example/\" \"Mozilla/5.0\"",
            high / 250,
            high % 250,
            random.u64(100..20_000)
        )?;
    }
    output.flush()
}

/// Returns a user by a power law: few users send most requests.
fn user(random: &mut fastrand::Rng) -> u64 {
    (random.f64().powi(2) * USERS as f64) as u64
}

/// Returns a second of the day as `15/Nov/2026:13:55:36 +0000`.
fn clock(seconds: u64) -> String {
    format!("15/Nov/2026:{:02}:{:02}:{:02} +0000", seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60)
}
