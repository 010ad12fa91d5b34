//! Commands for Redis: those of the baselines and those of the store.

use anyhow::Result;

use super::recorder::Recorder;
use super::scenario::{CAPACITY, REFILL_PER_HOUR, Scenario, user};
use super::server::Redis;
use super::wire::{Reply, packed};
use super::{DEPTH, USERS};

/// The name of the minimal script whose state is a string.
pub(super) const STRING: &str = "minimal script, string";
/// The name of the minimal script whose state is a hash.
pub(super) const HASH: &str = "minimal script, hash";
/// Number of batches after which every user had the same number of calls.
const BATCHES: usize = 2 * USERS / DEPTH;
/// Index of the admission in the reply of the script, after the status and the time.
const ADMITTED_AT: usize = 9;

/// One kind of command, for every user.
#[derive(Debug)]
pub struct Calls {
    /// Returns its name in tables.
    pub name: String,
    /// The arguments for each user.
    pub(super) arguments: Vec<Vec<Vec<u8>>>,
    /// The expected admission, if the reply contains it.
    admitted: Option<bool>,
}

impl Calls {
    /// Returns the baselines and every kind of check. The commands of a store are recorded first,
    /// so that the store is not part of the cost.
    ///
    /// # Errors
    /// If Redis or a store fails.
    pub async fn all(redis: &mut Redis) -> Result<Vec<Self>> {
        let mut all = vec![
            Self::minimal(STRING, redis, include_str!("minimal_string.lua"))?,
            Self::minimal(HASH, redis, include_str!("minimal_hash.lua"))?,
            Self::for_each_user("INCR", None, |key| vec!["INCR".into(), key.into()]),
        ];
        let recorder = Recorder::start(redis.port()).await?;
        for scenario in Scenario::all()? {
            let arguments = recorder.record(&scenario).await?;
            all.push(Self { name: scenario.name, arguments, admitted: Some(scenario.admitted) });
        }
        Ok(all)
    }

    fn minimal(name: &str, redis: &mut Redis, script: &str) -> Result<Self> {
        let hash = redis.load(script)?;
        let capacity = CAPACITY.to_string();
        let rate = (REFILL_PER_HOUR as f64 / 3_600e6).to_string();
        Ok(Self::for_each_user(name, Some(true), |key| {
            let texts = ["1", key, &capacity, &rate, "1"];
            let rest = texts.into_iter().map(Vec::from);
            [b"EVALSHA".to_vec(), hash.clone()].into_iter().chain(rest).collect()
        }))
    }

    fn for_each_user(name: &str, admitted: Option<bool>, arguments: impl Fn(&str) -> Vec<Vec<u8>>) -> Self {
        // Keys have the same form as those of the store.
        let key = |number| format!("rl:{{user:{}}}:{name}:*", user(number));
        let arguments = (0..USERS).map(|number| arguments(&key(number))).collect();
        Self { name: name.into(), arguments, admitted }
    }

    /// Returns batches of commands in which the users alternate.
    pub(super) fn batches(&self) -> Vec<Vec<u8>> {
        let batch = |first: usize| {
            let turns = (first * DEPTH..(first + 1) * DEPTH).map(|turn| &self.arguments[turn % USERS]);
            turns.flat_map(|arguments| packed(arguments)).collect()
        };
        (0..BATCHES).map(batch).collect()
    }

    /// Whether the reply is the expected one.
    pub(super) fn is_expected(&self, reply: &Reply) -> bool {
        match (self.admitted, reply) {
            (None, _) => true,
            (Some(expected), Reply::Items(items)) => {
                items.first() == Some(&Reply::Integer(i64::from(expected)))
            }
            (Some(expected), Reply::Text(text)) => text.get(ADMITTED_AT) == Some(&u8::from(expected)),
            _ => false,
        }
    }
}
