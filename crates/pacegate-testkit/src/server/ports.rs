//! Ports that nobody listens on.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ports come from `FIRST..FIRST + COUNT`, and the bus of a cluster node is `BUS` further up.
///
/// Both ranges lie below the ports that systems give to outgoing connections. A killed server thus finds its
/// port free when it is restarted, and a client that keeps dialling a dead port cannot connect to itself.
const FIRST: u16 = 12_000;
const COUNT: u16 = 10_000;
const BUS: u16 = 10_000;

/// Counts on from a random number: two test processes rarely meet, and one never hands out a port twice, not
/// even while the server on it is down.
static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(FIRST)));

/// A port that is free now, and whose cluster bus port is free too.
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
