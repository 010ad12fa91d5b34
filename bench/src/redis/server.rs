//! A private Redis server, pinned to a core.

use std::env;
use std::path::Path;

use anyhow::Result;

use super::wire::Connection;
use crate::service::process::{Server, free_port};

/// A `redis-server` without persistence, and a connection for statistics. It is stopped when this
/// value is dropped.
#[derive(Debug)]
pub struct Redis {
    server: Server,
    control: Connection,
}

impl Redis {
    /// Starts the server on one core.
    ///
    /// # Errors
    /// If the server does not start.
    pub fn start(core: usize) -> Result<Self> {
        let port = free_port()?;
        let listen = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        // Both replace themselves by the server. setpriv stops it when this program is killed.
        let all = ["--pdeathsig", "KILL", "redis-server"].into_iter().chain(listen);
        let server = Server::start("redis-server", port, core, &env::temp_dir(), Path::new("setpriv"), all)?;
        Ok(Self { server, control: Connection::open(port)? })
    }

    /// Returns its port on the loopback address.
    pub fn port(&self) -> u16 {
        self.server.port
    }

    /// Returns its version.
    ///
    /// # Errors
    /// If the server does not respond.
    pub fn version(&mut self) -> Result<String> {
        let [version] = self.info("server", ["redis_version"])?;
        Ok(version)
    }

    /// Returns the processor time that it reports, in microseconds.
    ///
    /// # Errors
    /// If the server does not respond.
    pub fn processor_microseconds(&mut self) -> Result<f64> {
        let [user, system] = self.info("cpu", ["used_cpu_user", "used_cpu_sys"])?;
        Ok((user.parse::<f64>()? + system.parse::<f64>()?) * 1e6)
    }

    /// Loads a script and returns its hash.
    pub(super) fn load(&mut self, script: &str) -> Result<Vec<u8>> {
        self.control.ask(&["SCRIPT", "LOAD", script])?.into_text()
    }

    fn info<const COUNT: usize>(
        &mut self,
        section: &str,
        names: [&'static str; COUNT],
    ) -> Result<[String; COUNT]> {
        let text = self.control.ask(&["INFO", section])?.into_text()?;
        let text = String::from_utf8_lossy(&text);
        let value = |name: &str| {
            let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).unwrap_or_default()
        };
        Ok(names.map(value))
    }
}
