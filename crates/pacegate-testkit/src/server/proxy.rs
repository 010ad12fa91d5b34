//! A proxy that drops, delays and cuts replies.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// The fault of a [`FaultProxy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// Requests reach the server, replies are dropped, the connection stays open.
    ///
    /// A connection that lost replies is closed when another fault, or none, is set: a later reply
    /// would be taken for the response to an earlier request, which no network does.
    DropReplies,
    /// At random, a chunk of a reply is dropped and its connection is closed: the server has
    /// executed the request, but the client does not know.
    CutReplies {
        /// One in this many chunks on average; 1 means each.
        one_in: u32,
        /// The seed that determines which chunks.
        seed: u64,
    },
    /// Replies are delayed by this much.
    DelayReplies(Duration),
    /// New connections are closed at once. Existing ones continue; [`FaultProxy::cut`] closes them.
    Refuse,
}

/// A TCP proxy that injects faults in front of a server. It stops when dropped.
pub struct FaultProxy {
    address: SocketAddr,
    setting: watch::Sender<Setting>,
    dropped: Arc<AtomicU64>,
    connections: Connections,
    accepting: AbortHandle,
}

type Connections = Arc<Mutex<JoinSet<()>>>;

#[derive(Clone)]
struct Setting {
    fault: Fault,
    /// Number of reply chunks that [`Fault::CutReplies`] has decided.
    decisions: Arc<AtomicU64>,
}

impl Setting {
    fn new(fault: Fault) -> Self {
        Self { fault, decisions: Arc::default() }
    }

    /// Whether the next chunk is cut.
    fn cuts(&self, one_in: u32, seed: u64) -> bool {
        let decision = self.decisions.fetch_add(1, Ordering::Relaxed);
        mix(mix(seed).wrapping_add(decision)).is_multiple_of(u64::from(one_in))
    }
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1 and forwards everything to `target`.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("some port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let (setting, settings) = watch::channel(Setting::new(Fault::None));
        let dropped = Arc::new(AtomicU64::new(0));
        let connections = Connections::default();
        let accept = accept(listener, target, settings, Arc::clone(&dropped), Arc::clone(&connections));
        let accepting = tokio::spawn(accept).abort_handle();
        Self { address, setting, dropped, connections, accepting }
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Applies this fault to existing and new connections.
    pub fn set(&self, fault: Fault) {
        assert!(!matches!(fault, Fault::CutReplies { one_in: 0, .. }), "`one_in` must be at least 1");
        self.setting.send_replace(Setting::new(fault));
    }

    /// Closes all existing connections.
    pub fn cut(&self) {
        locked(&self.connections).abort_all();
    }

    /// Number of reply chunks that were dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

fn locked(connections: &Connections) -> MutexGuard<'_, JoinSet<()>> {
    connections.lock().expect("no task panics while holding the lock")
}

async fn accept(
    listener: TcpListener,
    target: SocketAddr,
    settings: watch::Receiver<Setting>,
    dropped: Arc<AtomicU64>,
    connections: Connections,
) {
    loop {
        let (client, _) = listener.accept().await.expect("connections can be accepted");
        if settings.borrow().fault == Fault::Refuse {
            continue;
        }
        let settings = settings.clone();
        let dropped = Arc::clone(&dropped);
        let mut connections = locked(&connections);
        // Removes finished tasks, which would otherwise be kept until the proxy is dropped.
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            // Either side may close the connection; the reason does not matter.
            let _ = carry(client, target, settings, dropped).await;
        });
    }
}

/// Forwards everything between a client and the server until one of them, or a fault, ends the
/// connection.
async fn carry(
    client: TcpStream,
    target: SocketAddr,
    settings: watch::Receiver<Setting>,
    dropped: Arc<AtomicU64>,
) -> io::Result<()> {
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut requests, client) = client.into_split();
    let (replies, mut server) = server.into_split();
    let (sender, receiver) = mpsc::channel(1024);
    let forward = async {
        tokio::io::copy(&mut requests, &mut server).await?;
        // A client that has sent everything may still read.
        server.shutdown().await?;
        std::future::pending().await
    };
    let back = async {
        tokio::try_join!(receive(replies, sender, settings, &dropped), deliver(receiver, client))?;
        Ok(())
    };
    tokio::select! {
        result = forward => result,
        result = back => result,
    }
}

/// A reply chunk and when it is due.
type Due = (Instant, Vec<u8>);

/// Reads replies and decides what happens to each chunk.
async fn receive(
    mut replies: OwnedReadHalf,
    sender: mpsc::Sender<Due>,
    mut settings: watch::Receiver<Setting>,
    dropped: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; 65_536];
    let mut lost = false;
    loop {
        let length = tokio::select! {
            biased;
            changed = settings.changed() => {
                let resumes = lost && settings.borrow_and_update().fault != Fault::DropReplies;
                if resumes || changed.is_err() {
                    return Ok(());
                }
                continue;
            }
            length = replies.read(&mut buffer) => length?,
        };
        if length == 0 {
            return Ok(());
        }
        let setting = settings.borrow().clone();
        let delay = match setting.fault {
            Fault::None | Fault::Refuse => Duration::ZERO,
            Fault::DelayReplies(delay) => delay,
            Fault::DropReplies => {
                lost = true;
                dropped.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            Fault::CutReplies { one_in, seed } if setting.cuts(one_in, seed) => {
                dropped.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            Fault::CutReplies { .. } => Duration::ZERO,
        };
        let due = (Instant::now() + delay, buffer[..length].to_vec());
        if sender.send(due).await.is_err() {
            return Ok(());
        }
    }
}

/// Sends replies to the client in order, each when it is due.
async fn deliver(mut receiver: mpsc::Receiver<Due>, mut client: OwnedWriteHalf) -> io::Result<()> {
    while let Some((due, chunk)) = receiver.recv().await {
        sleep_until(due).await;
        client.write_all(&chunk).await?;
    }
    Ok(())
}

/// Spreads the bits of a number evenly (the finalizer of `splitmix64`).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
