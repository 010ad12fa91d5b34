//! Records the commands of a store, so that the same bytes can be sent without it.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use pacegate_redis::{RedisOptions, RedisStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::USERS;
use super::scenario::{Scenario, user};
use super::wire::unpacked;

/// A store, and a relay between it and Redis.
#[derive(Debug)]
pub(super) struct Recorder {
    store: RedisStore,
    overheard: Arc<Mutex<Vec<u8>>>,
    relay: JoinHandle<Result<()>>,
}

impl Recorder {
    pub(super) async fn start(redis: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let overheard = Arc::new(Mutex::new(Vec::new()));
        let relay = tokio::spawn(relay(listener, redis, overheard.clone()));
        let options = RedisOptions { connections: 1, ..options(port)? };
        let store = RedisStore::connect(options).await.context("connecting through the recorder")?;
        Ok(Self { store, overheard, relay })
    }

    /// Returns the arguments of the script call for each user, as the store sends it.
    pub(super) async fn record(&self, scenario: &Scenario) -> Result<Vec<Vec<Vec<u8>>>> {
        self.taken();
        for number in 0..USERS {
            scenario.ask(&self.store, &user(number)).await?;
        }
        let calls = unpacked(&self.taken())?;
        let expected = calls.iter().all(|call| call.first().is_some_and(|name| name == b"EVALSHA"));
        ensure!(expected && calls.len() == USERS, "the store sent something else for {}", scenario.name);
        Ok(calls)
    }

    fn taken(&self) -> Vec<u8> {
        std::mem::take(&mut *self.overheard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.relay.abort();
    }
}

/// Returns the default options for the server on `port`.
pub(super) fn options(port: u16) -> Result<RedisOptions> {
    Ok(RedisOptions::new(format!("redis://127.0.0.1:{port}").parse()?))
}

/// Relays the first client to Redis, and records its commands.
async fn relay(listener: TcpListener, redis: u16, overheard: Arc<Mutex<Vec<u8>>>) -> Result<()> {
    let (client, _) = listener.accept().await?;
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, redis)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let forth = async {
        let mut buffer = vec![0; 65_536];
        loop {
            let length = from_client.read(&mut buffer).await?;
            if length == 0 {
                return anyhow::Ok(());
            }
            // Recorded before it is passed on, so that it is complete when the reply arrives.
            overheard.lock().unwrap_or_else(PoisonError::into_inner).extend(&buffer[..length]);
            to_server.write_all(&buffer[..length]).await?;
        }
    };
    let back = tokio::io::copy(&mut from_server, &mut to_client);
    tokio::select! {
        result = forth => result,
        result = back => result.map(|_| ()).context("relaying replies"),
    }
}
