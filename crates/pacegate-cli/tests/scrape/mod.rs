//! The response of `GET /metrics`, read by a third-party parser.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use openmetrics_parser::OpenMetricsValue;
use openmetrics_parser::openmetrics::parse_openmetrics;

/// A name, labels in the order of the text, and a value.
pub type Series = (String, Vec<(String, String)>, f64);

/// The metrics at one time.
#[derive(Clone, Debug)]
pub struct Scrape {
    pub families: Vec<String>,
    /// Every series. Histograms have their count.
    pub series: Vec<Series>,
    pub text: String,
}

pub fn get(url: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

pub fn scrape(url: &str) -> Scrape {
    let response = get(url, "/metrics");
    let (head, text) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{response}");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    let parsed = parse_openmetrics(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let (mut families, mut series) = (Vec::new(), Vec::new());
    for (name, family) in parsed.families {
        assert!(!family.help.is_empty(), "{name} has no help");
        families.push(name.clone());
        for sample in family.iter_samples() {
            let labels = sample.get_labelset().unwrap();
            let labels = labels.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let value = match &sample.value {
                OpenMetricsValue::Counter(counter) => counter.value.as_f64(),
                OpenMetricsValue::Gauge(value) | OpenMetricsValue::Unknown(value) => value.as_f64(),
                OpenMetricsValue::Histogram(histogram) => histogram.count.unwrap() as f64,
                other => panic!("{name}: {other:?}"),
            };
            series.push((name.clone(), labels, value));
        }
    }
    Scrape { families, series, text: text.to_owned() }
}

impl Scrape {
    /// The sum of all series with these labels.
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let fits = |own: &[(String, String)]| {
            labels.iter().all(|(name, value)| own.iter().any(|(other, has)| other == name && has == value))
        };
        let found: Vec<f64> = self
            .series
            .iter()
            .filter(|(other, own, _)| other == name && fits(own))
            .map(|(_, _, value)| *value)
            .collect();
        (!found.is_empty()).then(|| found.iter().sum())
    }
}

/// Scrapes until `wanted` holds, for at most 20 seconds.
pub fn until(url: &str, what: &str, wanted: impl Fn(&Scrape) -> bool) -> Scrape {
    #[expect(clippy::disallowed_methods, reason = "waits for a process")]
    let start = Instant::now();
    loop {
        let scrape = scrape(url);
        if wanted(&scrape) {
            return scrape;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{what}:\n{}", scrape.text);
        std::thread::yield_now();
    }
}
