//! The activity of a connection, to find idle, stuck and misbehaving clients.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use hyper::{Request, Version};

use pin_project_lite::pin_project;

use super::listener::Presence;
use crate::Bounds;

/// Number of polls per idle timeout.
const POLLS: u32 = 4;
/// Maximum number of requests that a client may cancel beyond those it completes.
const CANCELLED_MAX: i64 = 1_000;

/// The activity of a connection.
#[derive(Debug)]
pub struct Activity {
    http2: AtomicBool,
    /// Counts the requests in flight.
    presence: Arc<Presence>,
    /// The number of those that are expected to end.
    short: AtomicUsize,
    /// Increases with any progress.
    progress: AtomicU64,
    /// The progress at the last poll, and the number of polls without progress.
    seen: AtomicU64,
    quiet: AtomicU64,
    /// Cancelled requests minus completed requests.
    cancelled: AtomicI64,
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Alive,
    /// It has been without a request for the idle timeout.
    Idle,
    /// It was asked to close and did not, or does not take its responses.
    Stuck,
}

impl Activity {
    pub(super) fn new(presence: Arc<Presence>, http2: bool) -> Self {
        Self {
            http2: AtomicBool::new(http2),
            presence,
            short: AtomicUsize::new(0),
            progress: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            quiet: AtomicU64::new(0),
            cancelled: AtomicI64::new(0),
        }
    }

    /// Returns the time between two polls.
    pub(super) fn poll_every(bounds: &Bounds) -> Duration {
        bounds.idle_timeout / POLLS
    }

    /// Starts a request. One that is not `long` is expected to end.
    pub(super) fn begin<B>(
        self: &Arc<Self>,
        request: Request<B>,
        long: bool,
    ) -> (InFlight, Request<Received<B>>) {
        // Only HTTP/2 can cancel a request without closing the connection.
        let broken = (request.version() == Version::HTTP_2).then(|| Arc::new(AtomicBool::new(false)));
        if broken.is_some() {
            self.http2.store(true, Ordering::Relaxed);
        }
        self.presence.enter();
        self.short.fetch_add(usize::from(!long), Ordering::Relaxed);
        self.progress.fetch_add(1, Ordering::Relaxed);
        let in_flight = InFlight { activity: self.clone(), long, finished: false, broken: broken.clone() };
        (in_flight, request.map(|body| Received { body, broken }))
    }

    /// Returns whether there has been a request.
    pub(super) fn has_begun(&self) -> bool {
        self.progress.load(Ordering::Relaxed) > 0
    }

    /// Returns the state of the connection.
    pub fn presence(&self) -> &Presence {
        &self.presence
    }

    pub(super) fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Evaluates the progress since the last poll.
    pub(super) fn poll(&self, bounds: &Bounds) -> Verdict {
        let progress = self.progress.load(Ordering::Relaxed);
        if self.seen.swap(progress, Ordering::Relaxed) != progress {
            self.quiet.store(0, Ordering::Relaxed);
            return Verdict::Alive;
        }
        let quiet = self.quiet.fetch_add(1, Ordering::Relaxed) + 1;
        let quiet_for = Self::poll_every(bounds) * u32::try_from(quiet).unwrap_or(u32::MAX);
        // Over HTTP/2, asked to close after the idle timeout and closed after twice that. Over
        // HTTP/1 there is nothing to ask; at most a part of a head is lost, which took too long.
        if !self.presence.is_active() {
            let patience = if self.is_http2() { 2 } else { 1 };
            return match quiet_for {
                quiet_for if quiet_for >= bounds.idle_timeout * patience => Verdict::Stuck,
                quiet_for if quiet_for >= bounds.idle_timeout => Verdict::Idle,
                _ => Verdict::Alive,
            };
        }
        // The service responds within its timeout, so the responses exist and the client reads
        // none.
        let unread = self.short.load(Ordering::Relaxed) > 0;
        if unread && quiet_for >= bounds.request_timeout + bounds.idle_timeout {
            Verdict::Stuck
        } else {
            Verdict::Alive
        }
    }
}

/// A request in flight, from its head to the end of its response.
#[derive(Debug)]
pub(super) struct InFlight {
    activity: Arc<Activity>,
    long: bool,
    finished: bool,
    broken: Option<Arc<AtomicBool>>,
}

impl InFlight {
    /// Extends the request until the whole response is taken.
    pub(super) fn track<B: Body>(mut self, body: B) -> Tracked<B> {
        self.finished = body.is_end_stream();
        Tracked { body, in_flight: self }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let activity = &*self.activity;
        activity.presence.leave();
        activity.short.fetch_sub(usize::from(!self.long), Ordering::Relaxed);
        activity.progress.fetch_add(1, Ordering::Relaxed);
        let broken = self.broken.as_ref().is_some_and(|broken| broken.load(Ordering::Relaxed));
        if self.finished && !broken {
            // Completed requests do not offset later cancellations.
            if activity.cancelled.load(Ordering::Relaxed) > 0 {
                activity.cancelled.fetch_sub(1, Ordering::Relaxed);
            }
        } else if activity.cancelled.fetch_add(1, Ordering::Relaxed) >= CANCELLED_MAX {
            activity.presence.cut_off();
        }
    }
}

pin_project! {
    /// The body of a request. If it is truncated, the request counts as cancelled, whatever the
    /// response.
    #[derive(Debug)]
    pub struct Received<B> {
        #[pin]
        body: B,
        broken: Option<Arc<AtomicBool>>,
    }
}

impl<B: Body> Body for Received<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        let polled = this.body.poll_frame(context);
        if let (Poll::Ready(Some(Err(_))), Some(broken)) = (&polled, this.broken) {
            broken.store(true, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pin_project! {
    /// The body of a response; the request ends with it.
    pub struct Tracked<B> {
        #[pin]
        body: B,
        in_flight: InFlight,
    }
}

impl<B: Body> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let mut this = self.project();
        let polled = this.body.as_mut().poll_frame(context);
        if let Poll::Ready(frame) = &polled {
            this.in_flight.activity.progress.fetch_add(1, Ordering::Relaxed);
            let last = match frame {
                None => true,
                Some(Ok(frame)) => frame.is_trailers() || this.body.is_end_stream(),
                Some(Err(_)) => false,
            };
            this.in_flight.finished |= last;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
