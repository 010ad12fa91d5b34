//! The reading thread of a replay: it parses lines into requests, sorts them and counts broken
//! lines.

use std::sync::mpsc::SyncSender;

use crate::error::SimulateError;
use crate::log::record::Record;
use crate::log::{Broken, Entry, LogReader};
use crate::options::StatusFilter;
use crate::order::{Late, Odd, Order};

/// Number of requests per batch that is passed to the other thread.
const BATCH: usize = 1_024;
pub(crate) const BROKEN_SHOWN: usize = 10;
const TOO_MANY_REQUESTS: u16 = 429;

/// The results of reading the log.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// Lines that are not empty.
    pub(crate) lines: u64,
    pub(crate) requests: u64,
    pub(crate) broken: u64,
    pub(crate) broken_shown: Vec<Broken>,
    /// Requests ignored because of their status.
    pub(crate) left_out: u64,
    pub(crate) already_denied: u64,
    pub(crate) late: Late,
    /// Requests ignored because the log never reached their times.
    pub(crate) odd: Odd,
    /// Whether a time had no fraction of a second.
    pub(crate) whole_seconds: bool,
}

impl Read {
    pub(crate) fn add_broken(&mut self, broken: Broken) {
        self.broken += 1;
        if self.broken_shown.len() < BROKEN_SHOWN {
            self.broken_shown.push(broken);
        }
    }

    /// Counts requests that the limiter rejected as broken lines.
    pub(crate) fn add_rejected(&mut self, count: u64, shown: Vec<Broken>) {
        let added = shown.len() as u64;
        shown.into_iter().for_each(|broken| self.add_broken(broken));
        self.broken += count - added;
        self.requests -= count;
    }
}

/// The reading thread.
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
        // The other thread ends when the sender is dropped.
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
            // A receiver that is gone has failed, and reports its error.
            let _ = sender.send(batch);
        }
    }
}
