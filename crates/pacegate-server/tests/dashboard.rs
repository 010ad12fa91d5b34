//! The files of the dashboard: headers, caching, and no external resources.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::{HeaderMap, Request, StatusCode};
use pacegate_config::Config;
use pacegate_server::{AdminKey, App};

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Requests a file from an address outside of `admin_allow`.
async fn ask(method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let config = Config::parse("server: {admin_allow: [10.0.0.0/8]}").unwrap();
    let app = App::new(&config, config.limiter().unwrap(), AdminKey::new("secret"));
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let peer = SocketAddr::from(([127, 0, 0, 1], 9999));
    let (parts, body) = app.respond(request.body(Body::empty()).unwrap(), peer).await.into_parts();
    let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Answer { status: parts.status, headers: parts.headers, text }
}

/// The other files of the dashboard that a file refers to.
fn named<'a>(text: &'a str, starts: &[&str], from: &str) -> Vec<String> {
    let mut names = Vec::new();
    for start in starts {
        for (place, _) in text.match_indices(start) {
            let rest: &'a str = &text[place + start.len()..];
            names.push(format!("{from}{}", rest.split(['"', '\'']).next().unwrap()));
        }
    }
    names
}

/// The page and all files that it and its scripts load.
async fn files() -> Vec<(String, Answer)> {
    let (mut waiting, mut files) = (vec!["/".to_owned()], Vec::<(String, Answer)>::new());
    while let Some(path) = waiting.pop() {
        if files.iter().any(|(known, _)| *known == path) {
            continue;
        }
        let answer = ask("GET", &path, &[]).await;
        assert_eq!(answer.status, 200, "{path}");
        waiting.extend(named(&answer.text, &["\"/dashboard/"], "/dashboard/"));
        waiting.extend(named(&answer.text, &["from './"], "/dashboard/"));
        files.push((path, answer));
    }
    files
}

#[tokio::test]
async fn files_have_a_content_type_and_a_strict_policy() {
    let files = files().await;
    assert!(files.len() > 10, "{}", files.len());
    for (path, answer) in &files {
        let kind = match path.rsplit('.').next().unwrap() {
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(answer.header("content-type"), kind, "{path}");
        let policy = answer.header("content-security-policy");
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.split("; ").any(|part| part == rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("referrer-policy"), "no-referrer");
        assert_eq!(answer.header("cache-control"), "no-cache");
    }
    let size: usize = files.iter().map(|(_, answer)| answer.text.len()).sum();
    assert!(size < 150_000, "the dashboard is {size} bytes");
}

#[tokio::test]
async fn cached_files_are_not_sent_again() {
    for path in ["/", "/dashboard/main.js"] {
        let first = ask("GET", path, &[]).await;
        let etag = first.header("etag").to_owned();
        assert!(etag.starts_with('"') && etag.len() > 10, "{etag}");
        for known in [etag.clone(), format!("W/{etag}"), format!("\"other\", {etag}"), "*".to_owned()] {
            let again = ask("GET", path, &[("if-none-match", &known)]).await;
            assert_eq!((again.status.as_u16(), again.text.as_str()), (304, ""), "{known}");
            assert_eq!(again.header("etag"), etag);
        }
        let changed = ask("GET", path, &[("if-none-match", "\"other\"")]).await;
        assert_eq!((changed.status.as_u16(), changed.text), (200, first.text));
    }
    let [page, script] = [ask("GET", "/", &[]).await, ask("GET", "/dashboard/main.js", &[]).await];
    assert_ne!(page.header("etag"), script.header("etag"));
}

#[tokio::test]
async fn head_works_and_other_methods_are_rejected() {
    let [head, get] = [ask("HEAD", "/", &[]).await, ask("GET", "/", &[]).await];
    assert_eq!((head.status.as_u16(), head.text.as_str()), (200, ""));
    assert_eq!(head.header("content-length"), get.text.len().to_string());
    assert_eq!(head.header("etag"), get.header("etag"));
    assert_eq!(ask("POST", "/", &[]).await.status, 405);
    for nothing in
        ["/dashboard", "/dashboard/", "/dashboard/secret.js", "/dashboard/../lib.rs", "/index.html"]
    {
        let answer = ask("GET", nothing, &[]).await;
        assert_eq!(answer.status, 404, "{nothing}");
        assert!(answer.text.starts_with("{\"error\""), "{}", answer.text);
    }
}

#[tokio::test]
async fn files_load_nothing_external_and_follow_the_policy() {
    for (path, Answer { text, .. }) in files().await {
        let own = text.replace("http://www.w3.org/2000/svg", "");
        for foreign in ["http://", "https://", "//cdn", "@import", "url("] {
            assert!(!own.contains(foreign), "{path} has {foreign}");
        }
        for unsafe_way in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
        {
            assert!(!text.contains(unsafe_way), "{path} has {unsafe_way}");
        }
        assert!(!text.contains("sessionStorage") && !text.contains("cookie"), "{path} could store the key");
        if path == "/" {
            assert!(
                !text.contains("style=") && !text.contains("<style") && !text.contains(" onclick"),
                "no inline code"
            );
            assert_eq!(text.matches("<script").count(), 1);
        }
    }
}

#[tokio::test]
async fn every_script_and_style_is_used() {
    let served: Vec<String> = files().await.into_iter().map(|(path, _)| path).collect();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = if name == "index.html" { "/".to_owned() } else { format!("/dashboard/{name}") };
        assert!(served.contains(&path), "no file loads {name}");
    }
}
