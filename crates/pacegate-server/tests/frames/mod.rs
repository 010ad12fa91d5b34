//! A raw HTTP/2 client that can send any frame, valid or not.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::io;
use std::net::SocketAddr;

use pacegate_proto::v1::CheckRequest;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::sockets::{Service, soon};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GO_AWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// Settings by their numbers.
pub const MAX_STREAMS: u16 = 3;
pub const INITIAL_WINDOW: u16 = 4;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An HTTP/2 frame.
#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Returns the error code of a reset.
    pub fn reason(&self) -> u32 {
        u32::from_be_bytes(self.payload[..4].try_into().unwrap())
    }

    /// Returns the last stream and the error code of a GOAWAY.
    pub fn go_away(&self) -> (u32, u32) {
        (self.reason(), u32::from_be_bytes(self.payload[4..8].try_into().unwrap()))
    }

    /// Returns whether it is a response with status 200, which is always encoded as one byte.
    pub fn is_ok(&self) -> bool {
        self.kind == HEADERS && self.payload.first() == Some(&0x88)
    }
}

pub fn bytes(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A request target over REST or gRPC.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub address: SocketAddr,
    pub path: &'static str,
    pub content_type: &'static str,
}

impl Target {
    /// Returns a check for each listener.
    pub fn both(service: &Service) -> [Self; 2] {
        let grpc = "/pacegate.v1.RateLimiter/CheckRateLimit";
        [
            Self { address: service.http, path: "/v1/rate-limit/check", content_type: "application/json" },
            Self { address: service.grpc, path: grpc, content_type: "application/grpc" },
        ]
    }

    /// Returns a stream of checks.
    pub fn stream(service: &Service) -> Self {
        Self { path: "/pacegate.v1.RateLimiter/CheckStream", ..Self::both(service)[1] }
    }

    /// Returns a compressed head, to which more headers may be appended.
    pub fn head(&self) -> Vec<u8> {
        // POST and http, then literals with indexed names.
        let mut head = vec![0x83, 0x86];
        for (name, value) in [
            (&b"\x01"[..], "x"),
            (b"\x04", self.path),
            (b"\x0f\x10", self.content_type),
            (b"\0\x02te", "trailers"),
        ] {
            head.extend_from_slice(name);
            head.push(u8::try_from(value.len()).unwrap());
            head.extend_from_slice(value.as_bytes());
        }
        head
    }

    pub fn body(&self) -> Vec<u8> {
        if self.content_type == "application/json" {
            return br#"{"user_id":"u","endpoint":"/x"}"#.to_vec();
        }
        let message =
            CheckRequest { identifier: "u".into(), endpoint: "/x".into(), ..CheckRequest::default() };
        let message = message.encode_to_vec();
        [&[0], &u32::try_from(message.len()).unwrap().to_be_bytes()[..], &message].concat()
    }
}

/// A connection on which frames are sent and received.
pub struct Wire {
    pub stream: TcpStream,
    target: Target,
}

impl Wire {
    /// Connects, sends these settings, and opens the connection window to its maximum.
    pub async fn open(target: &Target, settings: &[(u16, u32)]) -> Self {
        let mut stream = TcpStream::connect(target.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(PREFACE).await.unwrap();
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(number, value)| [&number.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        stream.write_all(&bytes(SETTINGS, 0, 0, &payload)).await.unwrap();
        stream.write_all(&bytes(WINDOW_UPDATE, 0, 0, &2_000_000_000_u32.to_be_bytes())).await.unwrap();
        Self { stream, target: *target }
    }

    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        self.stream.write_all(&bytes(kind, flags, stream, payload)).await
    }

    /// Starts a request without sending its body.
    pub async fn begin(&mut self, stream: u32) -> io::Result<()> {
        self.send(HEADERS, END_HEADERS, stream, &self.target.head()).await
    }

    /// Sends the body of a request.
    pub async fn finish(&mut self, stream: u32) -> io::Result<()> {
        self.send(DATA, END_STREAM, stream, &self.target.body()).await
    }

    /// Returns the next frame of a stream, and handles connection frames; `None` when the
    /// connection is closed.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            let frame = soon(self.receive()).await.ok()?;
            match frame.kind {
                SETTINGS if frame.flags != ACK => self.send(SETTINGS, ACK, 0, &[]).await.ok()?,
                PING if frame.flags != ACK => self.send(PING, ACK, 0, &frame.payload).await.ok()?,
                SETTINGS | PING | WINDOW_UPDATE => {}
                _ => return Some(frame),
            }
        }
    }

    /// Returns the next frame of any kind; an error at the end.
    pub async fn receive(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload).await?;
        Ok(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// Waits until the service has processed everything sent so far.
    pub async fn is_seen(&mut self) -> io::Result<()> {
        self.send(PING, 0, 0, b"are here").await?;
        loop {
            let frame = soon(self.receive()).await?;
            if (frame.kind, frame.flags) == (PING, ACK) {
                return Ok(());
            }
            if frame.kind == GO_AWAY && frame.go_away().1 != 0 {
                return Err(io::Error::from(io::ErrorKind::ConnectionReset));
            }
        }
    }

    /// Sends a request and returns whether a whole response arrives.
    pub async fn is_answered(&mut self, stream: u32) -> bool {
        if self.begin(stream).await.is_err() || self.finish(stream).await.is_err() {
            return false;
        }
        let mut answered = false;
        while let Some(frame) = self.next().await {
            if frame.stream == stream {
                answered |= frame.is_ok();
                if frame.kind == RESET || frame.flags & END_STREAM != 0 {
                    return answered;
                }
            }
        }
        false
    }

    /// Reads to the end; returns whether the connection was closed rather than reset.
    pub async fn is_closed(&mut self) -> bool {
        soon(async {
            let mut buffer = [0; 4_096];
            loop {
                match self.stream.read(&mut buffer).await {
                    Ok(0) => return true,
                    Ok(_) => {}
                    Err(_) => return false,
                }
            }
        })
        .await
    }
}
