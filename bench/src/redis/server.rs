//! A Redis of one's own, pinned to a core.

use std::env;
use std::path::Path;

use anyhow::Result;

use super::wire::Connection;
use crate::service::process::{Server, free_port};

/// A `redis-server` that keeps everything in memory, and a connection for its statistics. It
/// stops when this value is dropped.
#[derive(Debug)]
pub struct Redis {
    server: Server,
    control: Connection,
}

impl Redis {
    /// Starts it on one core.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(core: usize) -> Result<Self> {
        let port = free_port()?;
        let listen = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        // Both replace themselves by the server; setpriv makes it end when this program is killed.
        let all = ["--pdeathsig", "KILL", "redis-server"].into_iter().chain(listen);
        let server = Server::start("redis-server", port, core, &env::temp_dir(), Path::new("setpriv"), all)?;
        Ok(Self { server, control: Connection::open(port)? })
    }

    /// Where it listens on the loopback address.
    pub fn port(&self) -> u16 {
        self.server.port
    }

    /// Its version.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn version(&mut self) -> Result<String> {
        let [version] = self.info("server", ["redis_version"])?;
        Ok(version)
    }

    /// The processor time that it says it has used so far, in microseconds.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn processor_microseconds(&mut self) -> Result<f64> {
        let [user, system] = self.info("cpu", ["used_cpu_user", "used_cpu_sys"])?;
        Ok((user.parse::<f64>()? + system.parse::<f64>()?) * 1e6)
    }

    /// The hash of a script that it has from now on.
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
