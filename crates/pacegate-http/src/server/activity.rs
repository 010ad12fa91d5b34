//! What happens on a connection, so that those on which nothing happens, or nothing good, can be ended.

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

/// How many looks make up the time a connection may be idle.
const LOOKS: u32 = 4;
/// How many requests a client may give up beyond those it takes answers to.
const GIVEN_UP_MAX: i64 = 1_000;

/// What a connection has been doing.
#[derive(Debug)]
pub struct Activity {
    http2: AtomicBool,
    /// Counts the requests that are under way.
    presence: Arc<Presence>,
    /// Those among them that should end soon.
    short: AtomicUsize,
    /// Goes up whenever something happens.
    progress: AtomicU64,
    /// What it was at the last look, and for how many looks it has been that.
    seen: AtomicU64,
    quiet: AtomicU64,
    /// Requests given up, less those that were finished.
    given_up: AtomicI64,
}

/// What a look at a connection shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Alive,
    /// It has no request, and has had none for a while.
    Idle,
    /// It was asked to leave and does not, or does not take its answers.
    Stuck,
}

impl Activity {
    pub(super) fn new(presence: Arc<Presence>) -> Self {
        Self {
            http2: AtomicBool::new(false),
            presence,
            short: AtomicUsize::new(0),
            progress: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            quiet: AtomicU64::new(0),
            given_up: AtomicI64::new(0),
        }
    }

    /// How often to look.
    pub(super) fn look_every(bounds: &Bounds) -> Duration {
        bounds.idle_timeout / LOOKS
    }

    /// A request begins. One that is not `long` is expected to end.
    pub(super) fn begin<B>(
        self: &Arc<Self>,
        request: Request<B>,
        long: bool,
    ) -> (Begun, Request<Received<B>>) {
        // Only HTTP/2 has requests that are given up while the connection goes on.
        let broken = (request.version() == Version::HTTP_2).then(|| Arc::new(AtomicBool::new(false)));
        if broken.is_some() {
            self.http2.store(true, Ordering::Relaxed);
        }
        self.presence.enter();
        self.short.fetch_add(usize::from(!long), Ordering::Relaxed);
        self.progress.fetch_add(1, Ordering::Relaxed);
        let begun = Begun { activity: self.clone(), long, finished: false, broken: broken.clone() };
        (begun, request.map(|body| Received { body, broken }))
    }

    /// Whether there has been a request.
    pub(super) fn has_begun(&self) -> bool {
        self.progress.load(Ordering::Relaxed) > 0
    }

    /// What the connection does, and whether it has to close.
    pub fn presence(&self) -> &Presence {
        &self.presence
    }

    pub(super) fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Judges what has happened since the last look.
    pub(super) fn look(&self, bounds: &Bounds) -> Verdict {
        let progress = self.progress.load(Ordering::Relaxed);
        if self.seen.swap(progress, Ordering::Relaxed) != progress {
            self.quiet.store(0, Ordering::Relaxed);
            return Verdict::Alive;
        }
        let quiet = self.quiet.fetch_add(1, Ordering::Relaxed) + 1;
        let quiet_for = Self::look_every(bounds) * u32::try_from(quiet).unwrap_or(u32::MAX);
        // Asked to leave after the idle time, cut off after twice that.
        if !self.presence.is_active() {
            return match quiet_for {
                quiet_for if quiet_for >= bounds.idle_timeout * 2 => Verdict::Stuck,
                quiet_for if quiet_for >= bounds.idle_timeout => Verdict::Idle,
                _ => Verdict::Alive,
            };
        }
        // The service answers within its time, so the answers are there and nobody takes them.
        let unread = self.short.load(Ordering::Relaxed) > 0;
        if unread && quiet_for >= bounds.request_timeout + bounds.idle_timeout {
            Verdict::Stuck
        } else {
            Verdict::Alive
        }
    }
}

/// A request under way, from its head to the end of its answer.
#[derive(Debug)]
pub(super) struct Begun {
    activity: Arc<Activity>,
    long: bool,
    finished: bool,
    broken: Option<Arc<AtomicBool>>,
}

impl Begun {
    /// Goes on until the whole answer is taken.
    pub(super) fn track<B: Body>(mut self, body: B) -> Tracked<B> {
        self.finished = body.is_end_stream();
        Tracked { body, begun: self }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let activity = &*self.activity;
        activity.presence.leave();
        activity.short.fetch_sub(usize::from(!self.long), Ordering::Relaxed);
        activity.progress.fetch_add(1, Ordering::Relaxed);
        let broken = self.broken.as_ref().is_some_and(|broken| broken.load(Ordering::Relaxed));
        if self.finished && !broken {
            // Those finished before do not make up for any number given up later.
            if activity.given_up.load(Ordering::Relaxed) > 0 {
                activity.given_up.fetch_sub(1, Ordering::Relaxed);
            }
        } else if activity.given_up.fetch_add(1, Ordering::Relaxed) >= GIVEN_UP_MAX {
            activity.presence.cut_off();
        }
    }
}

pin_project! {
    /// The body of a request. One that breaks off was given up, whatever the answer to it is.
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
    /// The body of an answer; the request ends with it.
    pub struct Tracked<B> {
        #[pin]
        body: B,
        begun: Begun,
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
            this.begun.activity.progress.fetch_add(1, Ordering::Relaxed);
            let last = match frame {
                None => true,
                Some(Ok(frame)) => frame.is_trailers() || this.body.is_end_stream(),
                Some(Err(_)) => false,
            };
            this.begun.finished |= last;
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
