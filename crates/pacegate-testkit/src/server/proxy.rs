//! A network that loses, delays and cuts replies.

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

/// What a [`FaultProxy`] does to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: everything passes.
    None,
    /// Requests reach the server, replies are thrown away, the connection stays open.
    ///
    /// A connection that lost replies is closed when another fault, or none, is set: a reply that passed then
    /// would be taken for the answer to an earlier request, and no network does that.
    SwallowReplies,
    /// Now and then a reply chunk is thrown away and its connection is closed: the server executed, the client
    /// never learns.
    CutReplies {
        /// One in this many chunks on average; 1 means each.
        one_in: u32,
        /// Which chunks follows from this number alone.
        seed: u64,
    },
    /// Replies arrive this much later.
    DelayReplies(Duration),
    /// Connections are closed as soon as they are accepted. Present ones go on; [`FaultProxy::cut`] ends them.
    Refuse,
}

/// A TCP proxy in front of a server that misbehaves on demand. It ends when dropped.
pub struct FaultProxy {
    address: SocketAddr,
    setting: watch::Sender<Setting>,
    swallowed: Arc<AtomicU64>,
    connections: Connections,
    accepting: AbortHandle,
}

type Connections = Arc<Mutex<JoinSet<()>>>;

#[derive(Clone)]
struct Setting {
    fault: Fault,
    /// How many reply chunks [`Fault::CutReplies`] decided on.
    decisions: Arc<AtomicU64>,
}

impl Setting {
    fn new(fault: Fault) -> Self {
        Self { fault, decisions: Arc::default() }
    }

    /// Whether the next chunk is one of those to cut.
    fn cuts(&self, one_in: u32, seed: u64) -> bool {
        let decision = self.decisions.fetch_add(1, Ordering::Relaxed);
        mix(mix(seed).wrapping_add(decision)).is_multiple_of(u64::from(one_in))
    }
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1 and passes everything on to `target`.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("some port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let (setting, settings) = watch::channel(Setting::new(Fault::None));
        let swallowed = Arc::new(AtomicU64::new(0));
        let connections = Connections::default();
        let accept = accept(listener, target, settings, Arc::clone(&swallowed), Arc::clone(&connections));
        let accepting = tokio::spawn(accept).abort_handle();
        Self { address, setting, swallowed, connections, accepting }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on does this to present and new connections.
    pub fn set(&self, fault: Fault) {
        assert!(!matches!(fault, Fault::CutReplies { one_in: 0, .. }), "one in how many must be at least 1");
        self.setting.send_replace(Setting::new(fault));
    }

    /// Closes all present connections.
    pub fn cut(&self) {
        locked(&self.connections).abort_all();
    }

    /// How many reply chunks were thrown away so far, by swallowing and by cutting.
    pub fn swallowed(&self) -> u64 {
        self.swallowed.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

fn locked(connections: &Connections) -> MutexGuard<'_, JoinSet<()>> {
    connections.lock().expect("no one panics while holding it")
}

async fn accept(
    listener: TcpListener,
    target: SocketAddr,
    settings: watch::Receiver<Setting>,
    swallowed: Arc<AtomicU64>,
    connections: Connections,
) {
    loop {
        let (client, _) = listener.accept().await.expect("connections can be accepted");
        if settings.borrow().fault == Fault::Refuse {
            continue;
        }
        let settings = settings.clone();
        let swallowed = Arc::clone(&swallowed);
        let mut connections = locked(&connections);
        // Those that ended are forgotten, or they would be kept until the proxy is dropped.
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            // Whoever closed the connection, it is closed for both, and nobody wants to know why.
            let _ = carry(client, target, settings, swallowed).await;
        });
    }
}

/// Passes everything between a client and the server until one of them, or a fault, ends the connection.
async fn carry(
    client: TcpStream,
    target: SocketAddr,
    settings: watch::Receiver<Setting>,
    swallowed: Arc<AtomicU64>,
) -> io::Result<()> {
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut requests, client) = client.into_split();
    let (replies, mut server) = server.into_split();
    let (sender, receiver) = mpsc::channel(1024);
    let forward = async {
        tokio::io::copy(&mut requests, &mut server).await?;
        // A client that has nothing more to ask may still read.
        server.shutdown().await?;
        std::future::pending().await
    };
    let back = async {
        tokio::try_join!(receive(replies, sender, settings, &swallowed), deliver(receiver, client))?;
        Ok(())
    };
    tokio::select! {
        result = forward => result,
        result = back => result,
    }
}

/// A reply chunk and when it is due.
type Due = (Instant, Vec<u8>);

/// Reads replies and decides what becomes of each chunk.
async fn receive(
    mut replies: OwnedReadHalf,
    sender: mpsc::Sender<Due>,
    mut settings: watch::Receiver<Setting>,
    swallowed: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; 65_536];
    let mut lost = false;
    loop {
        let length = tokio::select! {
            biased;
            changed = settings.changed() => {
                let resumes = lost && settings.borrow_and_update().fault != Fault::SwallowReplies;
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
            Fault::SwallowReplies => {
                lost = true;
                swallowed.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            Fault::CutReplies { one_in, seed } if setting.cuts(one_in, seed) => {
                swallowed.fetch_add(1, Ordering::SeqCst);
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

/// Hands replies to the client in their order, each when it is due.
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
