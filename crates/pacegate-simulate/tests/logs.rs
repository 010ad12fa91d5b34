//! Logs of every format: what is parsed, what is rejected, and how hostile text is shown.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{Cursor, Write};

use pacegate_config::Config;
use pacegate_simulate::{Format, LogOptions, Options, Report, RuleFile, SimulateError, Source, simulate};

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
fn formats_are_detected() {
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
fn request_line_is_optional_if_there_is_an_endpoint() {
    let both =
        "{\"time\":1700000000,\"ip\":\"192.0.2.1\",\"path\":\"/a\",\"request\":\"POST /b HTTP/1.1\"}\n";
    let log = both.to_owned() + &both.replace("POST /b HTTP/1.1", "-");
    let report = run(&[&log], &options(None, "")).unwrap();
    assert_eq!((report.log.requests, report.endpoints[0].endpoint.as_str()), (2, "/a"));
}

#[test]
fn several_logs_are_replayed_as_one() {
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
fn several_logs_are_sorted_by_time() {
    let log = |day: u32| -> String {
        (0..600)
            .map(|second| {
                let clock = format!("{day:02}/Oct/2000:13:{:02}:{:02}", second / 60, second % 60);
                COMMON.replace("10/Oct/2000:13:55:36", &clock)
            })
            .collect()
    };
    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let logs = [
        ("new", log(12).into_bytes()),
        ("empty", Vec::new()),
        ("newer.gz", gzip(&log(13))),
        ("old", log(11).into_bytes()),
    ];
    let sources = logs
        .map(|(name, bytes)| Source { name: name.into(), reader: Box::new(Cursor::new(bytes)) })
        .into_iter()
        .collect();
    let rules = RuleFile { name: "rules.yaml".into(), config: Config::parse(RULES).unwrap() };
    let report = simulate(sources, &[rules], &options(None, ""), &mut |_| {}).unwrap();
    assert_eq!(report.log.files, ["old", "new", "empty", "newer.gz"]);
    assert_eq!((report.log.requests, report.log.late_requests, report.log.broken_lines), (1_800, 0, 0));
    assert_eq!((report.log.first.as_str(), report.log.odd_times), ("2000-10-11T20:00:00Z", 0));
}

#[test]
fn columns_can_be_empty_and_each_log_has_its_own_header() {
    let report = run(&["user\ttime\tip\tagent\n\t1700000000\t192.0.2.1\t\n"], &options(None, "")).unwrap();
    assert_eq!((report.log.requests, report.log.broken_lines), (1, 0), "{:?}", report.log.broken_examples);
    assert_eq!(
        report.rule_sets[0].blocked_customers[1].customers, 1,
        "{:?}",
        report.rule_sets[0].blocked_customers
    );
    let report = run(&["time\tip\tuser\n1700000000\t192.0.2.1\t\n"], &options(None, "")).unwrap();
    assert_eq!((report.log.requests, report.log.broken_lines), (1, 0), "{:?}", report.log.broken_examples);

    let first = "time,ip,path\n1700000000,192.0.2.1,/a\n";
    let other = "path;agent;ip;time\n/a;x;192.0.2.1;1700000001\n";
    let headless = "1700000002,192.0.2.1,/a\n";
    let report = run(&[first, first, other], &options(None, "")).unwrap();
    assert_eq!((report.log.requests, report.log.broken_lines), (3, 0), "{:?}", report.log.broken_examples);
    assert_eq!(report.endpoints[0].requests, 3);
    let report = run(&[first, headless], &options(Some(Format::Csv), "")).unwrap();
    assert_eq!((report.log.requests, report.log.broken_lines), (2, 0), "{:?}", report.log.broken_examples);
    let message = misused(&[first, "time,address\n1700000001,192.0.2.1\n"], &options(None, ""));
    assert_eq!(
        message,
        "--log log1: the header has no `path`, `ip`, which the other logs have; replay this log separately"
    );
}

/// The first lines of a service are often health checks without a user.
#[test]
fn fields_of_later_lines_are_found() {
    let health = "{\"ts\":1700000000,\"ip\":\"192.0.2.1\"}\n".repeat(5_000);
    let request = "{\"ts\":1700000001,\"ip\":\"192.0.2.1\",\"user\":\"alice\"}\n".repeat(3);
    let report = run(&[&(health.clone() + &request)], &options(None, "")).unwrap();
    assert!(report.log.fields.iter().any(|field| field.part == "user"), "{:?}", report.log.fields);
    let warnings = report.log.warnings.join("\n");
    let expected =
        "no field in its first 5,003 lines is known to be the endpoint, so every request counts as `/`";
    assert!(warnings.contains(expected), "{warnings}");
    // Warnings name the lines that were examined, because later lines can have the field.
    let rules = "rules: [{name: r, dimension: user, algorithm: gcra, limit: 1, window: 1s}]";
    let rules = RuleFile { name: "rules.yaml".into(), config: Config::parse(rules).unwrap() };
    let log = health.repeat(2) + &request;
    let source = Source { name: "log".into(), reader: Box::new(Cursor::new(log.into_bytes())) };
    let report = simulate(vec![source], &[rules], &options(None, ""), &mut |_| {}).unwrap();
    assert_eq!(
        report.rule_sets[0].warnings,
        [
            "rule `r` never applied: it counts by `user`, which is not in the log's first 10,000 lines; set the field with --map user=FIELD"
        ]
    );
}

#[test]
fn placeholders_are_not_identities() {
    let line = |ip: &str, user: &str| {
        format!("{{\"ts\":1700000000,\"path\":\"/\",\"ip\":\"{ip}\",\"user\":\"{user}\"}}\n")
    };
    let log = line("192.0.2.1", "alice").repeat(3) + &line("192.0.2.1, ", "alice") + &line("192.0.2.1", "--");
    let report = run(&[&log], &options(None, "")).unwrap();
    assert_eq!((report.log.requests, report.log.broken_lines), (4, 1));
    let broken = &report.log.broken_examples[0];
    assert!(broken.line == 4 && broken.reason.contains("is not an address"), "{broken:?}");
    let customers: Vec<u64> =
        report.rule_sets[0].blocked_customers.iter().map(|each| each.customers).collect();
    assert_eq!(customers, [1, 1]);
    assert_eq!(report.log.warnings, ["1 of 5 lines is not a request"]);
}

#[test]
fn line_with_an_invalid_address_is_broken() {
    let log = COMBINED.replace("192.0.2.1 - -", "www.example.com:443 192.0.2.7 - alice");
    let report = run(&[&log.repeat(2)], &options(None, "")).unwrap();
    assert_eq!(report.rule_sets[0].most_blocked[0].key.as_deref(), Some("ip 192.0.2.7"));
    assert!(report.log.warnings.is_empty(), "{:?}", report.log.warnings);
    let log = COMBINED.replace("192.0.2.1 - -", "www.example.com - alice");
    let report = run(&[&(log.repeat(2) + COMBINED)], &options(None, "")).unwrap();
    assert_eq!(report.log.broken_lines, 2);
    let reason = "`www.example.com` is not an address; set the field with --map ip=FIELD";
    assert_eq!(report.log.broken_examples[0].reason, reason);
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
        "has no request such as `GET /path HTTP/1.1`",
        "has no request such as `GET /path HTTP/1.1`",
        "is longer than 65536 bytes",
        "`99/Oct/2000:13:55:36 -0700` is not a time",
    ];
    assert_eq!(reasons, expected);
    assert!(report.log.warnings[0].contains("25 of 28 lines are not requests"), "{:?}", report.log.warnings);
}

#[test]
fn log_without_requests_is_an_error_with_an_example() {
    assert_eq!(failed(&[""], &options(None, "")), "log0: the log is empty");
    assert_eq!(failed(&["\n\n"], &options(None, "")), "log0: the log is empty");
    assert_eq!(failed(&["time,ip\n"], &options(None, "")), "log0: the log contains no request");
    let message = failed(&["hello\nworld\n"], &options(None, ""));
    for part in ["unknown format", "hello", "--format", "combined  192.0.2.1"] {
        assert!(message.contains(part), "{message}");
    }
    let message = failed(&["hello\nworld\n"], &options(Some(Format::Combined), ""));
    for part in [
        "none of the 2 lines is a request in format combined",
        "line 1 is not in the common log format",
        "expected: 192.0.2.1",
        "--map",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let only = Options { only_status: Some("5xx".parse().unwrap()), ..options(None, "") };
    assert_eq!(failed(&[COMMON], &only), "log0: --only-status ignores all of its 1 requests");
}

#[test]
fn mapping_error_lists_the_fields_of_the_log() {
    assert_eq!(
        misused(&[CSV], &options(None, "user=account")),
        "--map user=account: the log has no field `account`; the log has time, ip, path"
    );
    let message = misused(&["{\"when\":1,\"who\":{\"id\":2}}\n"], &options(None, ""));
    assert!(message.contains("--map time=FIELD; the first line has when, who.id"), "{message}");
    let only = Options { only_status: Some("2xx".parse().unwrap()), ..options(None, "") };
    assert!(
        misused(&[CSV], &only).starts_with("--only-status: no field of the log is known to be the status")
    );
}

#[test]
fn statuses_can_be_filtered_and_429_is_warned_about() {
    let log =
        COMMON.repeat(2) + &COMMON.replace("\" 200 ", "\" 429 ") + &COMMON.replace("\" 200 ", "\" 503 ");
    let report = run(&[&log], &options(None, "")).unwrap();
    assert_eq!((report.log.requests, report.log.answered_429), (4, 1));
    assert!(report.log.warnings[0].starts_with("1 request with status 429: "));
    let only = Options { only_status: Some("2xx,503".parse().unwrap()), ..options(None, "") };
    let report = run(&[&log], &only).unwrap();
    assert_eq!((report.log.requests, report.log.left_out_by_status, report.log.answered_429), (3, 1, 0));
}

#[test]
fn page_escapes_hostile_text() {
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
    let log = COMMON.repeat(3)
        + "192.0.2.1 alice\n"
        + &COMMON.replace("10/Oct/2000:13:55:36 -0700", "alice")
        + &COMMON.replace(" 200 ", " alice ");
    let hidden =
        |secret: &[u8]| Options { hash_keys: Some(secret.to_vec()), ..options(Some(Format::Common), "") };
    let report = run(&[&log], &hidden(b"secret")).unwrap();
    for text in [report.to_text(), report.to_json().unwrap(), report.to_html()] {
        assert!(!text.contains("alice") && !text.contains("192.0.2.1"), "{text}");
    }
    let reasons: Vec<&str> = report.log.broken_examples.iter().map(|broken| broken.reason.as_str()).collect();
    assert_eq!(
        reasons,
        ["is not in the common log format", "a value is not a time", "a value is not a status"]
    );
    // A rule for one customer contains the identifier.
    let rules = |limit: u32| {
        let yaml = format!(
            "rules: [{{name: one, dimension: user, identifier: alice, algorithm: fixed_window, limit: {limit}, window: 1h}}]"
        );
        RuleFile { name: "rules.yaml".into(), config: Config::parse(&yaml).unwrap() }
    };
    let source = Source { name: "log".into(), reader: Box::new(Cursor::new(log.clone().into_bytes())) };
    let report = simulate(vec![source], &[rules(1), rules(2)], &hidden(b"secret"), &mut |_| {}).unwrap();
    assert!(report.comparison.as_ref().unwrap().rules[0].rule.starts_with("one [identifier #"));
    for text in [report.to_text(), report.to_json().unwrap(), report.to_html()] {
        assert!(!text.contains("alice") && !text.contains("192.0.2.1"), "{text}");
    }
    let nothing = [
        failed(&["192.0.2.77 alice\n"], &hidden(b"secret")),
        failed(&["alice\n"], &Options { hash_keys: Some(Vec::new()), ..options(None, "") }),
        misused(&["1700000000,alice\n"], &Options { hash_keys: Some(Vec::new()), ..options(None, "") }),
        failed(
            &["{\"time\":1,\"ip\":\"x\"} alice\n", "\"alice\"\n"],
            &Options { hash_keys: Some(Vec::new()), ..options(Some(Format::Json), "time=time,ip=ip") },
        ),
    ];
    for message in nothing {
        // The example of the expected format contains another alice.
        let message = message.replace("192.0.2.1 - alice [", "");
        assert!(!message.contains("alice") && !message.contains("192.0.2.77"), "{message}");
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
