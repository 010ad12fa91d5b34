//! Accepting connections: bounded for all and for each address, encrypted or not, watched while
//! they last, and drained when the program stops.
//!
//! A program implements [`Requests`] for what answers the requests of one connection and hands a
//! [`Listener`] a function that makes one for each [`Client`].

mod activity;
mod bodies;
mod connection;
mod listener;
mod per_second;
mod tls;
mod unread;

pub use activity::{Activity, Received, Tracked};
pub use bodies::{Bodies, Full, Gathered, Held, Incomplete, discard, gather};
pub use connection::{Client, Phase, Requests, Settings, Sizes, stop};
pub use listener::{Busy, Figures, Listener, Presence, Slot, lines_held_back, network_of};
pub use per_second::PerSecond;
pub use tls::{CERTIFICATE_CHECK_EVERY, ClientCertificate, Tls, TlsError};
pub use unread::{DISCARD_BYTES_MAX, DISCARD_TIME_MAX, Lingering, RequestBody, Unread};

/// The wall clock, for what is counted by the second.
fn now() -> pacegate::Timestamp {
    use pacegate::store::Clock;
    static CLOCK: std::sync::LazyLock<pacegate::store::WallClock> =
        std::sync::LazyLock::new(pacegate::store::WallClock::new);
    CLOCK.now()
}
