//! Free ports.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ports come from `FIRST..FIRST + COUNT`; the bus of a cluster node is `BUS` higher.
///
/// Both ranges are below the ephemeral ports. So a killed server finds its port free when it is
/// restarted, and a client that keeps connecting to a dead port cannot connect to itself.
const FIRST: u16 = 12_000;
const COUNT: u16 = 10_000;
const BUS: u16 = 10_000;

/// Starts at a random number: two test processes rarely collide, and one process never returns a
/// port twice, even while the server on it is down.
static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(FIRST)));

/// A port that is currently free, together with its cluster bus port.
pub fn free() -> u16 {
    let candidates = (0..COUNT).map(|_| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % u64::from(COUNT);
        FIRST + u16::try_from(number).expect("it is less than COUNT")
    });
    let mut free = candidates.filter(|&port| is_free(port) && is_free(port + BUS));
    free.next().expect("one of ten thousand ports is free")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
