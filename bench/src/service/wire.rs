//! A minimal HTTP/1.1 client with one request at a time. The load generator must cost less than the
//! server.

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::PATH;

/// Maximum length of a response of either server.
const ANSWER_LENGTH_MAX: usize = 64 * 1_024;

/// The relevant parts of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body_bytes: usize,
}

/// A persistent connection with one request in flight.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.context("connecting")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(4_096) })
    }

    pub(super) async fn ask(&mut self, request: &[u8]) -> Result<Answer> {
        self.stream.write_all(request).await.context("sending")?;
        self.buffer.clear();
        let mut head = None;
        loop {
            let count = self.stream.read_buf(&mut self.buffer).await.context("receiving")?;
            ensure!(count > 0, "the server closed the connection");
            ensure!(self.buffer.len() <= ANSWER_LENGTH_MAX, "the response does not end");
            if head.is_none() {
                head = parse_head(&self.buffer)?;
            }
            if let Some((head_bytes, answer)) = head {
                let length = head_bytes + answer.body_bytes;
                ensure!(self.buffer.len() <= length, "the server sent more than a response");
                if self.buffer.len() == length {
                    return Ok(answer);
                }
            }
        }
    }
}

/// Returns the bytes of a check of `user`.
pub(super) fn request(port: u16, user: usize) -> Vec<u8> {
    let body = format!(r#"{{"user_id":"user-{user:06}","endpoint":"/api/v1/orders"}}"#);
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

/// Parses the head, and returns its length and contents. `None` while it is incomplete.
fn parse_head(bytes: &[u8]) -> Result<Option<(usize, Answer)>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let head = str::from_utf8(&bytes[..end]).context("the head is not text")?;
    let mut lines = head.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status = status_line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let Some(status) = status else { bail!("not a response: {status_line:?}") };
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok());
    let Some(body_bytes) = length else { bail!("a response without content-length: {head:?}") };
    Ok(Some((end + 4, Answer { status, body_bytes })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let answer = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 12\r\nx: y\r\n\r\n{}";
        let expected = Answer { status: 429, body_bytes: 12 };
        assert_eq!(parse_head(answer).unwrap(), Some((answer.len() - 2, expected)));
        assert_eq!(parse_head(&answer[..30]).unwrap(), None);
        parse_head(b"HTTP/1.1 200 OK\r\n\r\n").unwrap_err();
        parse_head(b"nonsense\r\n\r\n").unwrap_err();
    }

    #[test]
    fn requests_say_how_long_they_are() {
        let text = String::from_utf8(request(80, 123)).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, r#"{"user_id":"user-000123","endpoint":"/api/v1/orders"}"#);
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
    }
}
