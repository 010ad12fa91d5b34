//! Request bodies in flight, within one memory budget.
//!
//! The length that a client announces reserves nothing. A complete body is charged while its
//! request is decided. An incomplete body is charged with the bytes it holds and with its request.
//! When the incomplete bodies exceed their part of the budget, those that have waited longest are
//! rejected, starting with the address that holds most: a caller that holds memory without sending
//! loses it to callers that send.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use hyper::body::Body;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::listener::network_of;
use super::unread::{DISCARD_BYTES_MAX, DISCARD_TIME_MAX};

/// Maximum size of a complete body that is not charged: its request takes more memory itself.
const FREE_BYTES_MAX: usize = 1024;
/// Memory of a request with an incomplete body, besides the body: its head, stream and future.
/// Measured.
const REQUEST_BYTES: usize = 20 * 1024;
/// Memory of a stream of messages, besides the current message: buffers of its decoder and of its
/// responses. Measured.
const STREAM_BYTES: usize = 52 * 1024;

/// The memory budget of request bodies in flight.
#[derive(Debug)]
pub struct Bodies {
    max: usize,
    /// The part for incomplete bodies. The rest is reserved for complete bodies.
    waiting_max: usize,
    held: AtomicUsize,
    rejected: AtomicU64,
    waiting: Mutex<Waiting>,
}

/// The incomplete bodies.
#[derive(Debug, Default)]
struct Waiting {
    bytes: usize,
    /// The number that was assigned last.
    last: u64,
    callers: HashMap<IpAddr, Caller>,
}

#[derive(Debug, Default)]
struct Caller {
    bytes: usize,
    /// In the order in which they started to wait.
    bodies: BTreeMap<u64, (usize, Arc<Signal>)>,
}

/// The state of a waiting body, and its rejection signal.
#[derive(Debug, Default)]
struct Signal {
    /// Its number among the waiting bodies; 0 before it has one.
    number: AtomicU64,
    /// Whether a message arrived on a stream since the last check.
    moved: AtomicBool,
    rejected: AtomicBool,
    waker: AtomicWaker,
}

impl Signal {
    /// Assigns the next number.
    fn enter(&self, last: &mut u64) -> u64 {
        *last += 1;
        self.number.store(*last, Ordering::Relaxed);
        *last
    }
}

/// The memory budget is used up.
#[derive(Debug)]
pub struct Full;

impl Bodies {
    /// Bounds all bodies to `max` bytes in total.
    pub fn new(max: usize) -> Self {
        Self {
            max,
            waiting_max: max / 8 * 3,
            held: AtomicUsize::new(0),
            rejected: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
    }

    /// Returns the number of bytes that are charged now.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed) as u64
    }

    /// Returns the number of rejected requests.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Registers that a body waits for more data, with the bytes it holds now.
    fn wait(&self, caller: IpAddr, bytes: usize, signal: &Arc<Signal>) {
        let mut rejected = Vec::new();
        {
            let waiting = &mut *self.waiting.lock();
            let number = signal.number.load(Ordering::Relaxed);
            // A body that was rejected in the meantime learns it from its signal.
            if number != 0 && !waiting.remove(caller, number) {
                return;
            }
            let number = if number == 0 { signal.enter(&mut waiting.last) } else { number };
            let own = waiting.callers.entry(caller).or_default();
            own.bodies.insert(number, (bytes, signal.clone()));
            own.bytes += bytes;
            waiting.bytes += bytes;
            if waiting.bytes > self.waiting_max {
                // More than necessary, so that this is rare.
                waiting.reject_down_to(self.waiting_max / 8 * 7, &mut rejected);
            }
        }
        self.rejected.fetch_add(rejected.len() as u64, Ordering::Relaxed);
        for signal in rejected {
            signal.rejected.store(true, Ordering::Release);
            signal.waker.wake();
        }
    }
}

impl Waiting {
    /// Removes a body; returns whether it was registered.
    fn remove(&mut self, caller: IpAddr, number: u64) -> bool {
        let Some(own) = self.callers.get_mut(&caller) else { return false };
        let Some((bytes, _)) = own.bodies.remove(&number) else { return false };
        own.bytes -= bytes;
        self.bytes -= bytes;
        if own.bodies.is_empty() {
            self.callers.remove(&caller);
        }
        true
    }

    fn reject_down_to(&mut self, target: usize, rejected: &mut Vec<Arc<Signal>>) {
        while self.bytes > target {
            let Some((caller, own)) = self.callers.iter_mut().max_by_key(|(_, own)| own.bytes) else {
                return;
            };
            let (caller, half) = (*caller, own.bytes / 2);
            while self.bytes > target
                && own.bytes > half
                && let Some((_, (bytes, signal))) = own.bodies.pop_first()
            {
                // A stream in use counts as new.
                if signal.moved.swap(false, Ordering::Relaxed) {
                    own.bodies.insert(signal.enter(&mut self.last), (bytes, signal));
                    continue;
                }
                own.bytes -= bytes;
                self.bytes -= bytes;
                rejected.push(signal);
            }
            if own.bodies.is_empty() {
                self.callers.remove(&caller);
            }
        }
    }
}

/// The memory charged for one body, until this is dropped.
#[derive(Debug)]
pub struct Held {
    bodies: Arc<Bodies>,
    caller: IpAddr,
    bytes: usize,
    waiting: Option<Arc<Signal>>,
}

impl Held {
    /// Creates an empty charge for a caller at this address.
    pub fn new(bodies: &Arc<Bodies>, caller: Option<IpAddr>) -> Self {
        let caller = caller.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), network_of);
        Self { bodies: bodies.clone(), caller, bytes: 0, waiting: None }
    }

    /// Replaces the charge by `bytes`.
    fn charge(&mut self, bytes: usize) -> Result<(), Full> {
        let more = bytes.saturating_sub(self.bytes);
        let held = &self.bodies.held;
        if held.fetch_add(more, Ordering::Relaxed) + more > self.bodies.max && more > 0 {
            held.fetch_sub(more, Ordering::Relaxed);
            self.bodies.rejected.fetch_add(1, Ordering::Relaxed);
            return Err(Full);
        }
        held.fetch_sub(self.bytes.saturating_sub(bytes), Ordering::Relaxed);
        self.bytes = bytes;
        if let Some(signal) = &self.waiting {
            self.bodies.wait(self.caller, bytes, signal);
        }
        Ok(())
    }

    /// Charges a request that holds `bytes` of its body.
    pub fn charge_request(&mut self, bytes: usize) -> Result<(), Full> {
        self.charge(REQUEST_BYTES + bytes)
    }

    /// Charges a stream that holds `bytes` of a message.
    pub fn charge_stream(&mut self, bytes: usize) -> Result<(), Full> {
        self.charge(STREAM_BYTES + bytes)
    }

    /// Records that a message of a stream arrived.
    pub fn moved(&self) {
        if let Some(signal) = &self.waiting {
            signal.moved.store(true, Ordering::Relaxed);
        }
    }

    /// Records that more of the body is expected. Returns an error if the body was rejected in
    /// favour of others.
    pub fn wait(&mut self, context: &Context<'_>) -> Result<(), Full> {
        let signal = self.waiting.get_or_insert_with(|| {
            let signal = Arc::default();
            self.bodies.wait(self.caller, self.bytes, &signal);
            signal
        });
        signal.waker.register(context.waker());
        if signal.rejected.load(Ordering::Acquire) { Err(Full) } else { Ok(()) }
    }

    /// Records that nothing more is expected.
    pub fn arrived(&mut self) {
        if let Some(signal) = self.waiting.take() {
            let mut waiting = self.bodies.waiting.lock();
            waiting.remove(self.caller, signal.number.load(Ordering::Relaxed));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.arrived();
        self.bodies.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A complete body, charged until it is dropped.
#[derive(Debug)]
pub struct Gathered {
    /// The whole body.
    pub bytes: Bytes,
    /// The memory that is charged for it, if it is large.
    pub held: Option<Held>,
}

impl Deref for Gathered {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why a body could not be gathered.
#[derive(Debug)]
pub enum Incomplete {
    /// The body is too large.
    TooLarge,
    /// The body was truncated.
    Broken,
    /// The memory budget is used up.
    Full(Full),
}

impl From<Full> for Incomplete {
    fn from(full: Full) -> Self {
        Self::Full(full)
    }
}

/// Reads the whole body of a request from `caller`, up to `bytes_max`. It costs almost nothing if
/// the body is already complete.
pub async fn gather<B: Body<Data = Bytes>>(
    body: B,
    bytes_max: usize,
    bodies: &Arc<Bodies>,
    caller: Option<IpAddr>,
) -> Result<Gathered, Incomplete> {
    let mut body = pin!(body);
    let mut gathering =
        Gathering { bodies, caller, bytes_max, first: Bytes::new(), chunks: Chunks::default(), held: None };
    poll_fn(|context| {
        loop {
            match body.as_mut().poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        gathering.add(data)?;
                    }
                    if body.is_end_stream() {
                        return Poll::Ready(gathering.finish());
                    }
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(Incomplete::Broken)),
                Poll::Ready(None) => return Poll::Ready(gathering.finish()),
                Poll::Pending => {
                    gathering.wait(context)?;
                    return Poll::Pending;
                }
            }
        }
    })
    .await
}

/// A body being read.
struct Gathering<'a> {
    bodies: &'a Arc<Bodies>,
    caller: Option<IpAddr>,
    bytes_max: usize,
    /// The first piece, which usually is the whole body. It is a part of the connection's buffer.
    first: Bytes,
    /// All pieces, once there are several or more are expected: a small piece must not keep a large
    /// buffer alive.
    chunks: Chunks,
    held: Option<Held>,
}

/// Bytes in chunks. A growing body neither copies nor frees what it has: the allocator would keep
/// memory that many bodies free at different sizes.
#[derive(Default)]
struct Chunks {
    chunks: Vec<Vec<u8>>,
    length: usize,
    capacity: usize,
}

impl Chunks {
    /// Maximum size of a chunk.
    const BYTES_MAX: usize = 16 * 1024;

    /// Returns the size of the next chunk for `bytes`: as much as there is already, so that small
    /// bodies stay small.
    fn next(&self, bytes: usize) -> usize {
        bytes.max(self.capacity).min(Self::BYTES_MAX)
    }

    /// Fills the last chunk; returns the rest.
    fn fill<'d>(&mut self, data: &'d [u8]) -> &'d [u8] {
        let Some(last) = self.chunks.last_mut() else { return data };
        let (fits, rest) = data.split_at(data.len().min(last.capacity() - last.len()));
        last.extend_from_slice(fits);
        self.length += fits.len();
        rest
    }

    fn add_chunk(&mut self, capacity: usize) {
        let chunk = Vec::with_capacity(capacity);
        self.capacity += chunk.capacity();
        self.chunks.push(chunk);
    }

    fn into_bytes(mut self) -> Bytes {
        match self.chunks.len() {
            0 | 1 => self.chunks.pop().unwrap_or_default().into(),
            _ => self.chunks.concat().into(),
        }
    }
}

impl Gathering<'_> {
    fn held(&mut self) -> &mut Held {
        self.held.get_or_insert_with(|| Held::new(self.bodies, self.caller))
    }

    fn add(&mut self, data: Bytes) -> Result<(), Incomplete> {
        if self.first.len() + self.chunks.length + data.len() > self.bytes_max {
            return Err(Incomplete::TooLarge);
        }
        if self.first.is_empty() && self.chunks.length == 0 {
            self.first = data;
            return Ok(());
        }
        let first = std::mem::take(&mut self.first);
        self.append(&first)?;
        self.append(&data)
    }

    fn append(&mut self, data: &[u8]) -> Result<(), Incomplete> {
        let mut rest = self.chunks.fill(data);
        while !rest.is_empty() {
            let next = self.chunks.next(rest.len());
            let capacity = self.chunks.capacity + next;
            self.held().charge_request(capacity)?;
            self.chunks.add_chunk(next);
            rest = self.chunks.fill(rest);
        }
        Ok(())
    }

    fn wait(&mut self, context: &Context<'_>) -> Result<(), Incomplete> {
        let first = std::mem::take(&mut self.first);
        self.append(&first)?;
        let capacity = self.chunks.capacity;
        let held = self.held();
        if held.bytes == 0 {
            held.charge_request(capacity)?;
        }
        Ok(held.wait(context)?)
    }

    fn finish(&mut self) -> Result<Gathered, Incomplete> {
        let bytes = match std::mem::take(&mut self.first) {
            first if !first.is_empty() => first,
            _ => std::mem::take(&mut self.chunks).into_bytes(),
        };
        if bytes.len() <= FREE_BYTES_MAX {
            return Ok(Gathered { bytes, held: None });
        }
        let held = self.held();
        held.arrived();
        // The capacity of chunks is already charged.
        if held.bytes == 0 {
            held.charge(bytes.len())?;
        }
        Ok(Gathered { bytes, held: self.held.take() })
    }
}

/// Discards what still arrives of an unwanted body, for a short time, so that the client receives
/// its response and the connection stays usable. Stops early if the memory budget is used up.
pub async fn discard<B: Body<Data = Bytes>>(body: B, bodies: &Arc<Bodies>, caller: Option<IpAddr>) {
    if body.is_end_stream() {
        return;
    }
    let mut body = pin!(body);
    let (mut read, mut held) = (0, None);
    let discarded = poll_fn(|context| {
        loop {
            match body.as_mut().poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    read += frame.data_ref().map_or(0, |data| data.len() as u64);
                    if read > DISCARD_BYTES_MAX || body.is_end_stream() {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    let held = held.get_or_insert_with(|| Held::new(bodies, caller));
                    if held.charge_request(0).and_then(|()| held.wait(context)).is_err() {
                        return Poll::Ready(());
                    }
                    return Poll::Pending;
                }
            }
        }
    });
    let _ = timeout(DISCARD_TIME_MAX, discarded).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use futures_util::FutureExt;
    use http_body_util::{Full as Whole, StreamBody};
    use hyper::body::Frame;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    type Pieces = mpsc::UnboundedSender<Result<Frame<Bytes>, std::io::Error>>;
    const MAX: usize = 256 * 1024;

    /// Returns a body whose pieces the test sends.
    fn slow() -> (Pieces, impl Body<Data = Bytes, Error = std::io::Error>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (sender, StreamBody::new(UnboundedReceiverStream::new(receiver)))
    }

    fn send(pieces: &Pieces, length: usize) {
        pieces.send(Ok(Frame::data(vec![b'x'; length].into()))).unwrap();
    }

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// Starts to gather a body of which `length` bytes arrive.
    async fn begin(
        bodies: &Arc<Bodies>,
        last: u8,
        length: usize,
    ) -> (Pieces, tokio::task::JoinHandle<Result<Gathered, Incomplete>>) {
        let (pieces, body) = slow();
        send(&pieces, length);
        let (bodies, peer) = (bodies.clone(), peer(last));
        let task = tokio::spawn(async move { gather(body, MAX, &bodies, Some(peer)).await });
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        (pieces, task)
    }

    #[tokio::test]
    async fn large_body_is_charged_until_it_is_dropped_and_a_small_one_never() {
        let bodies = Arc::new(Bodies::new(1 << 20));
        let whole = |length: usize| Whole::new(Bytes::from(vec![b'x'; length]));
        let small = gather(whole(1_024), MAX, &bodies, None).await.unwrap();
        assert_eq!((small.len(), bodies.held()), (1_024, 0));
        let large = gather(whole(100_000), MAX, &bodies, None).await.unwrap();
        assert_eq!((large.len(), bodies.held()), (100_000, 100_000));
        drop(large);
        assert_eq!(bodies.held(), 0);
        let too_large = gather(whole(MAX + 1), MAX, &bodies, None).await.unwrap_err();
        assert!(matches!(too_large, Incomplete::TooLarge));
    }

    #[tokio::test]
    async fn body_in_pieces_is_charged_as_it_grows() {
        let bodies = Arc::new(Bodies::new(1 << 20));
        let (pieces, task) = begin(&bodies, 1, 10).await;
        assert_eq!(bodies.held() as usize, REQUEST_BYTES + 10);
        for _ in 0..99 {
            send(&pieces, 1_000);
        }
        while bodies.held() < 99_000 {
            tokio::task::yield_now().await;
        }
        assert!(bodies.held() < 2 * 99_010 + REQUEST_BYTES as u64, "{}", bodies.held());
        drop(pieces);
        let gathered = task.await.unwrap().unwrap();
        assert_eq!(gathered.len(), 99_010);
        assert!(bodies.waiting.lock().callers.is_empty());
        drop(gathered);
        assert_eq!(bodies.held(), 0);
    }

    #[tokio::test]
    async fn oldest_bodies_of_the_heaviest_address_are_rejected_for_new_ones() {
        let bodies = Arc::new(Bodies::new(1 << 20));
        let (other, other_task) = begin(&bodies, 2, 50_000).await;
        let mut attackers = Vec::new();
        for _ in 0..40 {
            attackers.push(begin(&bodies, 1, 50_000).await);
        }
        assert!(bodies.rejected() > 20, "{}", bodies.rejected());
        assert!(bodies.held() <= 1 << 20);
        let (last, last_task) = attackers.pop().unwrap();
        let (_, first_task) = attackers.remove(0);
        assert!(matches!(first_task.await.unwrap(), Err(Incomplete::Full(_))));
        drop((last, other));
        assert_eq!(last_task.await.unwrap().unwrap().len(), 50_000);
        assert_eq!(other_task.await.unwrap().unwrap().len(), 50_000);
        drop(attackers);
    }

    #[tokio::test]
    async fn complete_bodies_are_accepted_while_others_wait() {
        let bodies = Arc::new(Bodies::new(1 << 20));
        let mut waiting = Vec::new();
        for last in 0..200 {
            waiting.push(begin(&bodies, last, 50_000).await);
        }
        let whole = gather(Whole::new(Bytes::from(vec![b'x'; 100_000])), MAX, &bodies, None);
        assert!(whole.now_or_never().unwrap().is_ok());
    }

    #[tokio::test]
    async fn stream_in_use_outlives_idle_ones() {
        let bodies = Arc::new(Bodies::new(5 << 20));
        let context = &mut Context::from_waker(std::task::Waker::noop());
        let mut streams: Vec<_> = (0..30).map(|_| Held::new(&bodies, None)).collect();
        for stream in &mut streams {
            stream.charge_stream(0).unwrap();
            stream.wait(context).unwrap();
        }
        streams[0].moved();
        let mut later: Vec<_> = (0..12).map(|_| Held::new(&bodies, None)).collect();
        for stream in &mut later {
            stream.charge_stream(0).unwrap();
            stream.wait(context).unwrap();
        }
        assert!(streams[0].wait(context).is_ok() && streams[1].wait(context).is_err());
        drop((streams, later));
        assert_eq!((bodies.held(), bodies.waiting.lock().bytes), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn unwanted_body_is_discarded_for_a_short_time() {
        let bodies = Arc::new(Bodies::new(1 << 20));
        let (pieces, body) = slow();
        send(&pieces, 10);
        discard(body, &bodies, None).await;
        assert_eq!(bodies.held(), 0);
        assert!(pieces.is_closed());
    }
}
