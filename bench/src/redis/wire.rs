//! A minimal Redis client over a blocking connection.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Time after which a server counts as stuck.
const GRACE: Duration = Duration::from_secs(10);

/// A reply of Redis. An error reply is an `Err`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Nothing,
    Integer(i64),
    Text(Vec<u8>),
    Items(Vec<Reply>),
}

impl Reply {
    /// Reads a reply.
    pub(super) fn read(reader: &mut impl BufRead) -> Result<Self> {
        let mut line = Vec::with_capacity(32);
        reader.read_until(b'\n', &mut line).context("reading a reply")?;
        let line = line.strip_suffix(b"\r\n").context("the connection ended within a reply")?;
        let (kind, rest) = line.split_first().context("an empty reply")?;
        let text = str::from_utf8(rest).context("the reply is not text")?;
        let number = || text.parse::<i64>().with_context(|| format!("not a number: {text}"));
        Ok(match kind {
            b'+' => Self::Text(rest.to_vec()),
            b'-' => bail!("error of Redis: {text}"),
            b':' => Self::Integer(number()?),
            b'$' => match usize::try_from(number()?) {
                Err(_) => Self::Nothing,
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    reader.read_exact(&mut bytes).context("reading a reply")?;
                    bytes.truncate(length);
                    Self::Text(bytes)
                }
            },
            b'*' => {
                let items: Result<Vec<Self>> = (0..number()?).map(|_| Self::read(reader)).collect();
                Self::Items(items?)
            }
            _ => bail!("unknown kind of reply: {text}"),
        })
    }

    /// Returns the text of a reply.
    pub(super) fn into_text(self) -> Result<Vec<u8>> {
        match self {
            Self::Text(text) => Ok(text),
            other => bail!("not text: {other:?}"),
        }
    }
}

/// Returns the bytes of a command.
pub(super) fn packed(arguments: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments.iter().map(AsRef::as_ref) {
        bytes.extend(format!("${}\r\n", argument.len()).into_bytes());
        bytes.extend(argument);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// Parses the commands of a client. A command has the form of a reply.
pub(super) fn unpacked(mut bytes: &[u8]) -> Result<Vec<Vec<Vec<u8>>>> {
    let mut commands = Vec::new();
    while !bytes.is_empty() {
        let Reply::Items(arguments) = Reply::read(&mut bytes)? else { bail!("not a command") };
        commands.push(arguments.into_iter().map(Reply::into_text).collect::<Result<_>>()?);
    }
    Ok(commands)
}

/// A connection to a server on the loopback address.
#[derive(Debug)]
pub(super) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(super) fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connecting to Redis")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(GRACE))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends packed commands.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.get_mut().write_all(bytes).context("writing to Redis")
    }

    pub(super) fn receive(&mut self) -> Result<Reply> {
        Reply::read(&mut self.0)
    }

    /// Sends one command and waits for the reply.
    pub(super) fn ask(&mut self, arguments: &[impl AsRef<[u8]>]) -> Result<Reply> {
        self.send(&packed(arguments))?;
        self.receive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacks_what_it_packed() {
        let command = [b"SET".to_vec(), b"a\0\r\n".to_vec(), Vec::new()];
        let bytes = [packed(&command), packed(&["GET", "a"])].concat();
        assert_eq!(unpacked(&bytes).unwrap(), [command.to_vec(), vec![b"GET".to_vec(), b"a".to_vec()]]);
        assert!(unpacked(&bytes[..20]).is_err());
    }

    #[test]
    fn reads_every_kind_of_reply() {
        let mut bytes: &[u8] = b"*3\r\n:-1\r\n$-1\r\n+OK\r\n-ERR no\r\n";
        let items = vec![Reply::Integer(-1), Reply::Nothing, Reply::Text(b"OK".to_vec())];
        assert_eq!(Reply::read(&mut bytes).unwrap(), Reply::Items(items));
        assert_eq!(Reply::read(&mut bytes).unwrap_err().to_string(), "Redis answers: ERR no");
    }
}
