//! Servers as child processes, each pinned to a core and stopped when dropped.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::machine::processor_seconds;

const START_TIMEOUT: Duration = Duration::from_secs(10);
const START_POLL: Duration = Duration::from_millis(20);

/// A server that this program started.
#[derive(Debug)]
pub struct Server {
    /// Returns its name in tables.
    pub name: &'static str,
    /// Returns its port on the loopback address.
    pub port: u16,
    child: Child,
}

impl Server {
    /// Starts `program` on one core and waits until it listens on `port`.
    ///
    /// # Errors
    /// If the server does not start.
    pub fn start<I: AsRef<OsStr>>(
        name: &'static str,
        port: u16,
        core: usize,
        directory: &Path,
        program: &Path,
        arguments: impl IntoIterator<Item = I>,
    ) -> Result<Self> {
        // taskset replaces itself by the program, so the child process is the server.
        let child = Command::new("taskset")
            .args(["-c", &core.to_string()])
            .arg(program)
            .args(arguments)
            .env("PACEGATE_ADMIN_KEY", "bench")
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("starting taskset")?;
        let mut server = Self { name, port, child };
        server.wait_until_listening().with_context(|| format!("starting {}", program.display()))?;
        Ok(server)
    }

    /// Returns its processor time so far, in seconds.
    ///
    /// # Errors
    /// If the process has exited.
    pub fn processor_seconds(&self) -> Result<f64> {
        processor_seconds(self.child.id())
    }

    fn wait_until_listening(&mut self) -> Result<()> {
        let polls = START_TIMEOUT.as_millis() / START_POLL.as_millis();
        for _ in 0..polls {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended: {status}", self.name);
            }
            if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {
                return Ok(());
            }
            sleep(START_POLL);
        }
        bail!("{} does not listen on port {}", self.name, self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a free port of the loopback address.
///
/// # Errors
/// If there is none.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Pins this process, with all its threads, to one core.
///
/// # Errors
/// If `taskset` fails, for example because the core does not exist.
pub fn pin_to(core: usize) -> Result<()> {
    let status = Command::new("taskset")
        .args(["-a", "-c", "-p", &core.to_string(), &std::process::id().to_string()])
        .stdout(Stdio::null())
        .status()
        .context("starting taskset")?;
    ensure!(status.success(), "taskset cannot pin to core {core}: {status}");
    Ok(())
}
