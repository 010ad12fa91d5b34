//! Logs of every kind: what is read from them, what is refused, and what a page shows of hostile ones.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::Cursor;

use tollgate::Config;
use tollgate_simulate::{Format, LogOptions, Options, Report, RuleFile, SimulateError, Source, simulate};

const RULES: &str = "default_limit: none
rules: [{name: one, dimension: ip, algorithm: fixed_window, limit: 1, window: 1h}]";

fn options(format: Option<Format>, map: &str) -> Options {
    let map = if map.is_empty() { Default::default() } else { map.parse().unwrap() };
    Options { log: LogOptions { format, map }, ..Options::default() }
}

fn run(logs: &[&str], options: &Options) -> Result<Report, SimulateError> {
    let source = |(place, text): (usize, &&str)| Source {
        name: format!("log{place}"),
        reader: Box::new(Cursor::new(text.as_bytes().to_vec())),
    };
    let rules = RuleFile { name: "rules.yaml".into(), config: Config::parse(RULES).unwrap() };
    simulate(logs.iter().enumerate().map(source).collect(), &[rules], options, &mut |_| {})
}

fn misused(logs: &[&str], options: &Options) -> String {
    match run(logs, options) {
        Err(SimulateError::Misused(message)) => message,
        other => panic!("{other:?}"),
    }
}

fn failed(logs: &[&str], options: &Options) -> String {
    match run(logs, options) {
        Err(SimulateError::Failed(message)) => message,
        other => panic!("{other:?}"),
    }
}

const COMMON: &str = "192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] \"GET /a?b HTTP/1.1\" 200 2326\n";
const COMBINED: &str = "192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] \"GET /a HTTP/1.1\" 200 2326 \"-\" \"curl/8\" \"203.0.113.9\" 0.01\n";
const JSON: &str = "{\"time\":\"2000-10-10T20:55:36Z\",\"remote_addr\":\"192.0.2.1\",\"request\":\"GET /a HTTP/1.1\",\"status\":\"200\"}\n";
const CADDY: &str = "{\"ts\":971211336.5,\"request\":{\"remote_ip\":\"192.0.2.1\",\"method\":\"GET\",\"uri\":\"/a?b\"},\"status\":200}\n";
const CSV: &str = "time,ip,path\n2000-10-10T20:55:36Z,192.0.2.1,/a\n";

#[test]
fn formats_are_found_out() {
    let rows = [(COMMON, "common"), (COMBINED, "combined"), (JSON, "json"), (CADDY, "json"), (CSV, "csv")];
    for (line, format) in rows {
        let report = run(&[line], &options(None, "")).unwrap();
        assert_eq!(
            (report.log.format.as_str(), report.log.requests, report.log.broken_lines),
            (format, 1, 0),
            "{line}"
        );
        assert_eq!(report.log.first, "2000-10-10T20:55:36Z", "{line}");
        assert_eq!(report.endpoints[0].endpoint, "/a", "{line}");
    }
}

#[test]
fn fields_that_servers_add_can_be_mapped() {
    let log = COMBINED.repeat(2) + &COMBINED.replace("203.0.113.9", "203.0.113.10");
    let report = run(&[&log], &options(None, "ip=extra1")).unwrap();
    assert_eq!(report.rule_sets[0].most_blocked[0].identifier, "203.0.113.9");
    assert_eq!(report.rule_sets[0].rules[0].keys, 2);
}

#[test]
fn a_request_line_is_only_needed_where_nothing_else_says_the_endpoint() {
    let both =
        "{\"time\":1700000000,\"ip\":\"192.0.2.1\",\"path\":\"/a\",\"request\":\"POST /b HTTP/1.1\"}\n";
    let log = both.to_owned() + &both.replace("POST /b HTTP/1.1", "-");
    let report = run(&[&log], &options(None, "")).unwrap();
    assert_eq!((report.log.requests, report.endpoints[0].endpoint.as_str()), (2, "/a"));
}

#[test]
fn several_logs_are_one() {
    let later = CSV.replace(":36Z", ":37Z");
    let report = run(&["", CSV, &later], &options(None, "")).unwrap();
    assert_eq!((report.log.requests, report.log.broken_lines, report.rule_sets[0].blocked), (2, 0, 1));
    let broken = run(&[COMMON, "x\n"], &options(None, "")).unwrap();
    assert_eq!(
        (broken.log.broken_examples[0].file.as_str(), broken.log.broken_examples[0].line),
        ("log1", 1)
    );
}

#[test]
fn broken_lines_are_counted_and_shown_safely() {
    let mut log = String::from("\u{1b}[31mred\u{7}\n\n");
    log.push_str(&COMMON.repeat(3));
    log.push_str(&COMMON.replace("GET /a?b HTTP/1.1", "-"));
    log.push_str(&COMMON.replace("GET /a?b HTTP/1.1", "\\x16\\x03"));
    log.push_str(&COMMON.replace("/a?b", &format!("/{}", "x".repeat(70_000))));
    log.push_str(&COMMON.replace("10/Oct", "99/Oct"));
    log.push_str(&"junk\n".repeat(20));
    let report = run(&[&log], &options(Some(Format::Common), "")).unwrap();
    assert_eq!((report.log.lines, report.log.requests, report.log.broken_lines), (28, 3, 25));
    let examples = &report.log.broken_examples;
    assert_eq!(examples.len(), 10);
    assert_eq!(examples[0].text.as_deref(), Some("\\u{1b}[31mred\\u{7}"));
    assert_eq!(examples.iter().map(|broken| broken.line).take(5).collect::<Vec<_>>(), [1, 6, 7, 8, 9]);
    let reasons: Vec<&str> = examples.iter().map(|broken| broken.reason.as_str()).take(5).collect();
    let expected = [
        "is not in the common log format",
        "has no request like `GET /path HTTP/1.1`",
        "has no request like `GET /path HTTP/1.1`",
        "is longer than 65536 bytes",
        "`99/Oct/2000:13:55:36 -0700` is not a time",
    ];
    assert_eq!(reasons, expected);
    assert!(report.log.warnings[0].contains("25 of 28 lines are not requests"), "{:?}", report.log.warnings);
}

#[test]
fn a_log_without_requests_is_a_failure_that_says_what_was_expected() {
    assert_eq!(failed(&[""], &options(None, "")), "log0: there is no line in it");
    assert_eq!(failed(&["\n\n"], &options(None, "")), "log0: there is no line in it");
    assert_eq!(failed(&["time,ip\n"], &options(None, "")), "log0: there is no request in it");
    let message = failed(&["hello\nworld\n"], &options(None, ""));
    for part in ["cannot tell what its lines are", "hello", "--format", "combined  192.0.2.1"] {
        assert!(message.contains(part), "{message}");
    }
    let message = failed(&["hello\nworld\n"], &options(Some(Format::Combined), ""));
    for part in [
        "none of the 2 lines is a request",
        "line 1 is not in the common log format",
        "expected: 192.0.2.1",
        "--map",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let only = Options { only_status: Some("5xx".parse().unwrap()), ..options(None, "") };
    assert_eq!(failed(&[COMMON], &only), "log0: all its 1 requests are left out by --only-status");
}

#[test]
fn a_mapping_that_does_not_fit_names_the_fields_there_are() {
    assert_eq!(
        misused(&[CSV], &options(None, "user=account")),
        "--map user=account: the log has no field `account`; it has time, ip, path"
    );
    let message = misused(&["{\"when\":1,\"who\":{\"id\":2}}\n"], &options(None, ""));
    assert!(message.contains("--map time=FIELD; it has when, who.id"), "{message}");
    let only = Options { only_status: Some("2xx".parse().unwrap()), ..options(None, "") };
    assert!(misused(&[CSV], &only).starts_with("--only-status: the log has no field known to be the status"));
}

#[test]
fn answers_can_be_chosen_and_429_is_told() {
    let log =
        COMMON.repeat(2) + &COMMON.replace("\" 200 ", "\" 429 ") + &COMMON.replace("\" 200 ", "\" 503 ");
    let report = run(&[&log], &options(None, "")).unwrap();
    assert_eq!((report.log.requests, report.log.answered_429), (4, 1));
    assert!(report.log.warnings[0].starts_with("1 requests were already answered 429"));
    let only = Options { only_status: Some("2xx,503".parse().unwrap()), ..options(None, "") };
    let report = run(&[&log], &only).unwrap();
    assert_eq!((report.log.requests, report.log.left_out_by_status, report.log.answered_429), (3, 1, 0));
}

#[test]
fn a_page_shows_hostile_text_as_text() {
    let hostile = COMMON
        .replace("alice", "<script>alert(1)</script>")
        .replace("/a?b", "/<img src=x onerror=alert(1)>\\\"'&");
    let log = hostile.repeat(3) + "</script><script>alert(2)</script>\n";
    let report = run(&[&log], &options(Some(Format::Common), "")).unwrap();
    assert_eq!(report.rule_sets[0].most_blocked[0].identifier, "<script>alert(1)</script>");
    let page = report.to_html();
    assert!(
        page.contains("&lt;script&gt;alert(1)&lt;/script&gt;")
            && page.contains("&lt;/script&gt;&lt;script&gt;alert(2)")
    );
    for bad in ["<script", "<img", "http://"] {
        assert!(!page.contains(bad), "{bad}");
    }
    assert!(page.contains("default-src 'none'") && page.contains("prefers-color-scheme"));
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(
        page.matches("<table>").count() > 2
            && page.matches("<caption>").count() == page.matches("<table>").count()
    );
}

#[test]
fn identifiers_can_be_hidden_everywhere() {
    let log = COMMON.repeat(3) + "192.0.2.1 alice\n";
    let hidden =
        |secret: &[u8]| Options { hash_keys: Some(secret.to_vec()), ..options(Some(Format::Common), "") };
    let report = run(&[&log], &hidden(b"secret")).unwrap();
    for text in [report.to_text(), report.to_json().unwrap(), report.to_html()] {
        assert!(!text.contains("alice") && !text.contains("192.0.2.1"), "{text}");
    }
    let name = |secret: &[u8]| {
        run(&[&log], &hidden(secret)).unwrap().rule_sets[0].most_blocked[0].identifier.clone()
    };
    assert_eq!(name(b"secret"), name(b"secret"));
    assert_ne!(name(b"secret"), name(b"another"));
}

#[test]
fn reports_are_the_same_in_every_run() {
    let log: String = (0..500)
        .map(|number| {
            COMMON
                .replace("192.0.2.1", &format!("192.0.2.{}", number % 97))
                .replace("alice", &format!("u{}", number % 7))
        })
        .collect();
    let first = run(&[&log], &options(None, "")).unwrap();
    for _ in 0..3 {
        let again = run(&[&log], &options(None, "")).unwrap();
        assert_eq!(again.to_json().unwrap(), first.to_json().unwrap());
        assert_eq!(again.to_text(), first.to_text());
    }
    assert!(first.to_text().lines().all(|line| line.chars().count() <= 100), "{}", first.to_text());
}
