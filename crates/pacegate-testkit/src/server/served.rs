//! A store together with its server.

use std::fmt;

use pacegate_core::Timestamp;
use pacegate_store::{ApplyFuture, BatchFuture, Command, Store};

/// A store that keeps its server running for as long as it is used.
pub struct Served<S, T> {
    store: S,
    server: T,
}

impl<S: Store, T> Served<S, T> {
    /// Combines `store` with the `server` that it uses.
    pub fn new(store: S, server: T) -> Self {
        Self { store, server }
    }

    /// The server of the store.
    pub fn server(&self) -> &T {
        &self.server
    }
}

impl<S: Store, T: Send + Sync> Store for Served<S, T> {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        self.store.apply(command, now)
    }

    fn apply_batch<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        self.store.apply_batch(commands, now)
    }

    fn piece(&self, commands: &[Command<'_>]) -> usize {
        self.store.piece(commands)
    }
}

impl<S: fmt::Debug, T> fmt::Debug for Served<S, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Served").field("store", &self.store).finish_non_exhaustive()
    }
}
