//! The reading side of a replay: lines become requests, in order, and what cannot be one is counted.

use std::sync::mpsc::SyncSender;

use crate::error::SimulateError;
use crate::log::record::Record;
use crate::log::{Broken, Entry, LogReader};
use crate::options::StatusFilter;
use crate::order::{Late, Odd, Order};

/// Requests go to the other thread in parts of this many.
const BATCH: usize = 1_024;
pub(crate) const BROKEN_SHOWN: usize = 10;
const TOO_MANY_REQUESTS: u16 = 429;

/// What there is to say about the log itself.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// Those that are not empty.
    pub(crate) lines: u64,
    pub(crate) requests: u64,
    pub(crate) broken: u64,
    pub(crate) broken_shown: Vec<Broken>,
    /// By their status.
    pub(crate) left_out: u64,
    pub(crate) already_denied: u64,
    pub(crate) late: Late,
    /// Left out, because the log never came to their times.
    pub(crate) odd: Odd,
    /// Whether any time was just a second.
    pub(crate) whole_seconds: bool,
}

impl Read {
    pub(crate) fn add_broken(&mut self, broken: Broken) {
        self.broken += 1;
        if self.broken_shown.len() < BROKEN_SHOWN {
            self.broken_shown.push(broken);
        }
    }

    /// Counts what the limiter did not take, although it had been read as a request.
    pub(crate) fn add_refused(&mut self, count: u64, shown: Vec<Broken>) {
        let added = shown.len() as u64;
        shown.into_iter().for_each(|broken| self.add_broken(broken));
        self.broken += count - added;
        self.requests -= count;
    }
}

/// The thread that reads.
pub(crate) struct Reading {
    pub(crate) read: Read,
    only_status: Option<StatusFilter>,
    sender: Option<SyncSender<Vec<Record>>>,
    batch: Vec<Record>,
}

impl Reading {
    pub(crate) fn new(only_status: Option<StatusFilter>, sender: SyncSender<Vec<Record>>) -> Self {
        Self { read: Read::default(), only_status, sender: Some(sender), batch: Vec::with_capacity(BATCH) }
    }

    pub(crate) fn run(&mut self, log: &mut LogReader, mut order: Order) -> Result<(), SimulateError> {
        let result = self.read(log, &mut order);
        order.finish(|record| self.send(record));
        self.flush();
        // The other thread ends when nobody sends any more.
        self.sender = None;
        self.read.late = order.late();
        self.read.odd = order.odd().clone();
        self.read.requests -= self.read.odd.count;
        result
    }

    fn read(&mut self, log: &mut LogReader, order: &mut Order) -> Result<(), SimulateError> {
        while let Some(entry) = log.next()? {
            self.read.lines += 1;
            match entry {
                Entry::Broken(broken) => self.read.add_broken(broken),
                Entry::Request(record) => {
                    let wanted =
                        |filter: &StatusFilter| record.status.is_some_and(|status| filter.matches(status));
                    if !self.only_status.as_ref().is_none_or(wanted) {
                        self.read.left_out += 1;
                        continue;
                    }
                    self.read.requests += 1;
                    self.read.already_denied += u64::from(record.status == Some(TOO_MANY_REQUESTS));
                    self.read.whole_seconds |= record.time.whole_second;
                    order.push(record, |record| self.send(record));
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, record: Record) {
        self.batch.push(record);
        if self.batch.len() == BATCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        if let Some(sender) = &self.sender {
            // Whoever does not receive any more has failed, and says so.
            let _ = sender.send(batch);
        }
    }
}
