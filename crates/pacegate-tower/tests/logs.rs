//! The log of the layer. In a separate file, because log levels are global to a process and other
//! tests must not log.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::io::Write;
use std::sync::{Arc, Mutex};

use pacegate_tower::resolve::{api_key, header};
use pacegate_tower::{OnError, PacegateLayer};

use support::{app, get, gold, send, with_header};

/// A writer that collects log lines.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn logs_contain_hashes_instead_of_identifiers_and_errors_once_a_second() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let layer = PacegateLayer::builder(gold().0).by(api_key()).and_by(header("x-tenant")).plan("gold");
    let limited = app(layer.build().unwrap());
    for _ in 0..11 {
        let request = with_header(get("/x"), "x-api-key", b"hunter2");
        send(&limited, with_header(request, "x-tenant", b"acme-secret")).await;
    }
    // An unknown plan: every request fails, and one line is logged.
    let layer = PacegateLayer::builder(gold().0).by(header("x-tenant")).plan_by(|_| Some("silver"));
    let failing = app(layer.on_error(OnError::Pass).build().unwrap());
    for _ in 0..100 {
        send(&failing, with_header(get("/x"), "x-tenant", b"acme-secret")).await;
    }
    drop(guard);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("request denied") && log.contains("x-tenant"), "{log}");
    assert_eq!(log.matches("request could not be checked").count(), 1, "{log}");
    assert!(log.contains("unknown plan `silver`"), "{log}");
    assert!(!log.contains("hunter2") && !log.contains("acme-secret"), "{log}");
}
