//! `pacegate keys` and `pacegate audit` next to a running service.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and this one measures"
)]

mod process;

use std::time::{Duration, Instant};

use pacegate_catalog::Catalog;
use process::{Service, pacegate, run};

fn catalog() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("catalog.db").display());
    (directory, url)
}

#[test]
fn keys_are_created_listed_and_revoked_while_a_service_runs() {
    let (_directory, url) = catalog();
    let (code, output, errors) =
        run(&["keys", "create", "--role", "checker", "--name", "gateway", "--catalog", &url]);
    assert_eq!((code, errors.starts_with("note: created a new catalog")), (0, true), "{output}{errors}");
    let secret = output.lines().nth(1).unwrap().to_owned();
    let id = secret.split('_').nth(1).unwrap().to_owned();
    let required = [("PACEGATE_ADMIN_KEY", "secret"), ("PACEGATE_SERVER__REQUIRE_KEY", "true")];
    let service = Service::start(&["--catalog", &url], &required);
    let body = r#"{"user_id": "u", "endpoint": "/"}"#;
    assert!(service.post("/v1/rate-limit/check", &secret, body).starts_with("HTTP/1.1 200"));
    assert!(service.post("/v1/rate-limit/check", "pgk_0_0", body).starts_with("HTTP/1.1 401"));
    let list = || run(&["keys", "list", "--catalog", &url]).1;
    let header = "ID                ROLE      STATE     EXPIRES               LAST USED             NAME";
    assert_eq!(list().lines().next(), Some(header));
    // The service records the use in the background.
    let start = Instant::now();
    while list().contains("never                 never                 gateway") {
        assert!(start.elapsed() < Duration::from_secs(10), "the use is not recorded");
    }
    let output = list();
    let line =
        output.lines().find(|line| line.starts_with(&format!("{id}  checker   active    never"))).unwrap();
    let used = line.strip_suffix("  gateway").unwrap().rsplit(' ').next().unwrap();
    let age = std::time::SystemTime::now().duration_since(humantime::parse_rfc3339(used).unwrap()).unwrap();
    assert!(age < Duration::from_secs(60), "{line}");
    assert!(!output.contains(&secret));
    let expiring = ["keys", "create", "--role", "reader", "--expires-in", "1d", "--catalog", &url];
    assert_eq!(run(&expiring).0, 0);
    let output = list();
    let line = output.lines().find(|line| line.ends_with("  reader")).unwrap();
    let columns: Vec<&str> = line.split_whitespace().collect();
    let left = humantime::parse_rfc3339(columns[3]).unwrap().duration_since(std::time::SystemTime::now());
    assert!(left.unwrap() > Duration::from_secs(86_000) && columns[4] == "never", "{line}");

    let (code, output, _) = run(&["keys", "revoke", &id, "--catalog", &url]);
    assert_eq!(code, 0, "{output}");
    let start = Instant::now();
    while service.post("/v1/rate-limit/check", &secret, body).starts_with("HTTP/1.1 200") {
        assert!(start.elapsed() < Duration::from_secs(2), "a revoked key still works after two seconds");
    }
    assert!(list().contains(&format!("{id}  checker   revoked   never")), "{}", list());
    let (code, _, errors) = run(&["keys", "revoke", "nonsense", "--catalog", &url]);
    assert_eq!(code, 1);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let (code, _, errors) =
        run(&["keys", "create", "--role", "admin", "--expires-in", "soon", "--catalog", &url]);
    assert_eq!(code, 2);
    assert!(errors.contains("--expires-in"), "{errors}");
    let (code, _, _) = run(&["keys", "create", "--role", "owner", "--catalog", &url]);
    assert_eq!(code, 2);
}

#[test]
fn tampering_with_the_audit_trail_is_detected() {
    let (_directory, url) = catalog();
    for name in ["a", "b", "c"] {
        assert_eq!(run(&["keys", "create", "--role", "reader", "--name", name, "--catalog", &url]).0, 0);
    }
    let (code, output, _) = run(&["audit", "verify", "--catalog", &url]);
    let (summary, head) = output.trim().split_once("\nhead: ").unwrap();
    assert_eq!((code, summary), (0, "the audit trail is intact: 3 records"));
    assert!(head.starts_with("3:"), "{head}");
    assert_eq!(run(&["audit", "verify", "--catalog", &url, "--expect-head", head]).0, 0);
    let longer = head.replacen('3', "4", 1);
    let (code, _, errors) = run(&["audit", "verify", "--catalog", &url, "--expect-head", &longer]);
    assert_eq!(code, 1);
    assert!(errors.contains("the expected record 4 is not in the trail"), "{errors}");
    assert_eq!(run(&["audit", "verify", "--catalog", &url, "--expect-head", "4"]).0, 2);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // The catalog itself cannot do this.
        drop(Catalog::open(&url).await.unwrap());
        let path = url.trim_start_matches("sqlite://");
        let mut file = std::fs::read(path).unwrap();
        let name = b"\"name\":\"b\"";
        let at = file.windows(name.len()).position(|window| window == name).unwrap();
        file[at + 8] = b'x';
        std::fs::write(path, file).unwrap();
    });
    let (code, _, errors) = run(&["audit", "verify", "--catalog", &url]);
    assert_eq!(code, 1);
    assert!(
        errors.starts_with(
            "error: the audit trail is broken; 1 records are intact\n  record 2 is missing or was edited"
        ),
        "{errors}"
    );
    let (code, output, errors) = run(&["audit", "seal", "--catalog", &url]);
    assert_eq!((code, output.starts_with("sealed; head: 4:")), (0, true), "{output}{errors}");
    assert_eq!(run(&["audit", "verify", "--catalog", &url]).0, 0);
    let (code, _, errors) = run(&["audit", "verify", "--catalog", "oracle://x"]);
    assert_eq!((code, errors.lines().count()), (1, 1), "{errors}");
    assert!(pacegate().args(["audit"]).output().unwrap().status.code() == Some(2));
}
