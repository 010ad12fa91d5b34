//! Accepting connections: bounded in total and per address, encrypted or not, monitored, and
//! drained on shutdown.
//!
//! The task of a connection answers everything that has arrived and then writes once (`turn`). What
//! rarely happens to a connection is polled only when it does (`rarely`).
//!
//! A program implements [`Requests`], which responds to the requests of one connection, and passes
//! a [`Listener`] a function that creates one for each [`Client`].

mod activity;
mod bodies;
mod connection;
mod listener;
mod per_second;
mod rarely;
mod tls;
mod turn;
mod unread;

pub use activity::{Activity, Received, Tracked};
pub use bodies::{Bodies, Full, Gathered, Held, Incomplete, discard, gather};
pub use connection::{Client, Phase, Requests, Settings, Sizes, stop};
pub use listener::{Busy, Figures, Listener, Presence, Slot, network_of, suppressed_lines};
pub use per_second::PerSecond;
pub use tls::{CERTIFICATE_CHECK_EVERY, ClientCertificate, Tls, TlsError};
pub use unread::{DISCARD_BYTES_MAX, DISCARD_TIME_MAX, Lingering, RequestBody, Unread};

/// The wall clock, for counts per second.
fn now() -> pacegate::Timestamp {
    use pacegate::store::Clock;
    static CLOCK: std::sync::LazyLock<pacegate::store::WallClock> =
        std::sync::LazyLock::new(pacegate::store::WallClock::new);
    CLOCK.now()
}
