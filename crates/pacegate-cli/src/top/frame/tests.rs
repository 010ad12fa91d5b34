//! Frames of fixed figures.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

const FIGURES: &str = r#"{"at":"2026-11-16T10:00:00Z","version":"0.1.0","uptime_seconds":3725,"allowed_per_second":1234.5,
    "blocked_per_second":12.25,"degraded_per_second":0.0,"latency":{"p50_ms":0.05,"p95_ms":0.2,"p99_ms":null},
    "heaviest":[{"dimension":"user","identifier":"u1","allowed":1000,"blocked":2},{"dimension":"ip","identifier":"10.0.0.1","allowed":7,"blocked":0}],
    "most_blocked":[{"dimension":"user","identifier":"u9","allowed":1,"blocked":99}],
    "rules":[{"rule":"calm","algorithm":"gcra","allowed":10,"blocked":5,"shadow_blocked":0},
             {"rule":"busy","algorithm":"token_bucket","allowed":100,"blocked":1,"shadow_blocked":4}],
    "stores":[{"name":"default","health":"up","breaker":"closed","keys":1200,"errors":0,"degraded":0},
              {"name":"hot","health":"down","breaker":"half_open","keys":null,"errors":3,"degraded":8}],
    "connections":3,"ready":true,"something_new":1}"#;

fn figures() -> Figures {
    serde_json::from_str(FIGURES).unwrap()
}

fn view() -> View {
    let mut view = View::new("http://127.0.0.1:8080".into());
    view.update(figures(), None);
    view
}

fn text(view: &View, width: usize, height: Option<usize>) -> Vec<String> {
    view.lines(width, height).iter().map(|line| line.text().trim_end().to_owned()).collect()
}

#[test]
fn frame_shows_all_figures() {
    let lines = text(&view(), 80, None);
    let expected = [
        "pacegate 0.1.0  http://127.0.0.1:8080  ready  up 1h 2m 5s  3 connections",
        "1,235 allowed/s   12.2 blocked/s (1.0 %)   0 degraded/s",
        "latency: p50 0.050 ms   p95 0.200 ms   p99 -",
        "",
        "STORE                   HEALTH     BREAKER          KEYS     ERRORS   DEGRADED",
        "default                 up         closed          1,200          0          0",
        "hot                     down       half_open           -          3          8",
        "",
        "RULE               ALGORITHM        ALLOWED/s  BLOCKED/s  SHADOW/s     BLOCKED",
        "calm               gcra                     0          0         0           5",
        "busy               token_bucket             0          0         0           1",
        "",
        "HEAVIEST KEYS         ALLOWED   BLOCKED  MOST BLOCKED KEYS     ALLOWED   BLOCKED",
        "user u1                 1,000         2  user u9                     1        99",
        "ip 10.0.0.1                 7         0",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn rules_show_how_they_change_and_are_sorted() {
    let mut view = view();
    let mut next = figures();
    next.rules[0].blocked += 6;
    next.rules[1].allowed += 500;
    next.rules[1].shadow_blocked += 1;
    view.update(next, Some(Duration::from_secs(2)));
    let rules = |view: &View| text(view, 80, None)[9..11].to_vec();
    let calm = "calm               gcra                     0        3.0         0          11";
    let busy = "busy               token_bucket           250          0       0.5           1";
    assert_eq!(rules(&view), [calm, busy]);
    view.sort = Sort::Allowed;
    assert_eq!(rules(&view), [busy, calm]);
    view.sort = Sort::Name;
    assert_eq!(rules(&view), [busy, calm]);
}

#[test]
fn restart_is_not_shown_as_a_burst() {
    let mut view = view();
    view.lost = Some("could not reach http://127.0.0.1:8080".into());
    let lines = text(&view, 80, None);
    assert!(lines[0].contains("reconnecting…") && lines[2].contains("could not reach"), "{lines:?}");
    let mut next = figures();
    next.rules[0].allowed = 1_000;
    view.update(next, Some(Duration::from_secs(1)));
    let lines = text(&view, 80, None);
    assert!(!lines[0].contains("reconnecting"));
    assert!(
        !lines.join("\n").contains("990"),
        "counts from before the reconnect are not part of this second"
    );
}

#[test]
fn frame_fits_into_every_terminal() {
    let mut full = figures();
    full.heaviest = (0..10).map(|_| full.heaviest[0].clone()).collect();
    full.rules = (0..100).map(|_| full.rules[0].clone()).collect();
    full.stores = (0..20).map(|_| full.stores[0].clone()).collect();
    let mut view = view();
    view.update(full, None);
    for (width, height) in [(80, 24), (200, 60), (40, 10), (1, 1), (0, 0), (20, 100)] {
        let lines = text(&view, width, Some(height));
        assert!(lines.len() <= height.max(1), "{width}×{height}: {} lines", lines.len());
        for line in &lines {
            assert!(line.chars().filter_map(char::width).sum::<usize>() <= width, "{width}: {line}");
        }
    }
    let lines = text(&view, 80, Some(24));
    assert!(lines[23].starts_with("q quits   sort rules by [b]locked [a]llowed [n]ame"), "{lines:?}");
    assert!(lines.iter().filter(|line| line.starts_with("user u1")).count() >= 4, "{lines:?}");
    assert!(lines.iter().filter(|line| line.starts_with("calm")).count() >= 4, "{lines:?}");
}

#[test]
fn long_ids_are_shortened_in_the_middle() {
    let mut long = figures();
    long.heaviest[0].identifier = "0f8fad5b-d9cb-469f-a165-70867728950e".into();
    long.heaviest[1].identifier = "宽宽宽宽宽宽宽宽宽宽宽宽".into();
    let mut view = view();
    view.update(long, None);
    let lines = text(&view, 80, None);
    assert!(lines[13].starts_with("user 0f8f…67728950e     1,000         2"), "{lines:?}");
    assert!(lines[14].starts_with("ip 宽宽宽…宽宽宽宽          7         0"), "{lines:?}");
}

#[test]
fn names_cannot_steer_the_terminal() {
    let mut hostile = figures();
    hostile.heaviest[0].identifier = "\u{1b}[2J\u{202e}evil\r\n\u{7}".into();
    hostile.rules[0].rule = "宽宽宽宽宽宽宽宽宽宽宽宽".into();
    hostile.stores[0].health = "\u{1b}c".into();
    let mut view = view();
    view.update(hostile, None);
    for line in text(&view, 80, None) {
        assert!(!line.chars().any(|letter| letter.is_control() || letter == '\u{202e}'), "{line:?}");
        assert!(line.chars().filter_map(char::width).sum::<usize>() <= 80, "{line}");
    }
    assert!(text(&view, 80, None).iter().any(|line| line.contains("宽宽宽宽宽宽宽宽…  gcra")));
}
