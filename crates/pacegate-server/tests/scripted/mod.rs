//! A store with scripted behaviour.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pacegate::{
    MemoryStore, StoreError, Timestamp,
    store::{ApplyFuture, Command, Store},
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Behaviour {
    Answer,
    Hang,
    Unavailable,
    Rejected,
    Foreign,
    Overloaded,
    /// Responds after a varying delay.
    Uneven,
    /// Responds after 30 ms: too late for Envoy, in time for others.
    Slow,
}

/// A store with scripted behaviour.
#[derive(Debug)]
pub struct Scripted {
    behaviour: Mutex<Behaviour>,
    memory: MemoryStore,
}

impl Scripted {
    pub fn new(behaviour: Behaviour) -> Arc<Self> {
        Arc::new(Self { behaviour: Mutex::new(behaviour), memory: MemoryStore::default() })
    }

    pub fn set(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }
}

impl Store for Scripted {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(async move {
            let behaviour = *self.behaviour.lock().unwrap();
            if behaviour == Behaviour::Hang {
                pending::<()>().await;
            }
            if behaviour == Behaviour::Uneven {
                tokio::time::sleep(Duration::from_micros(fastrand::u64(..5_000))).await;
            }
            if behaviour == Behaviour::Slow {
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            match behaviour {
                Behaviour::Unavailable => Err(StoreError::unavailable("connection refused")),
                Behaviour::Rejected => Err(StoreError::rejected("wrong password")),
                Behaviour::Foreign => Err(StoreError::foreign("not ours")),
                Behaviour::Overloaded => Err(StoreError::overloaded()),
                _ => self.memory.apply_now(command, now),
            }
        })
    }
}
