//! Announced or incomplete bodies must not fill the memory, and must not block other callers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use pacegate_testkit::effort;

use crate::callers::{alone, resident_bytes};
use crate::process::Service;

/// Maximum resident memory during an attack. Debug builds need more.
const RESIDENT_MAX: u64 = if cfg!(debug_assertions) { 280_000_000 } else { 150_000_000 };
/// Number of gRPC connections of an attack, and of the streams that each tries to open: twice as
/// many as `server.max_streams` allows.
const CONNECTIONS: usize = 24;
const STREAMS: usize = 256;
/// The announced length of a message, which the service would accept.
const ANNOUNCED: u32 = 260_000;
const CHECK: &str = r#"{"user_id":"other-user","endpoint":"/x","limit":1000000,"window_seconds":60}"#;

/// Observations during an attack.
#[derive(Debug, Default)]
struct Seen {
    resident: u64,
    /// Statuses of the checks of another caller.
    statuses: Vec<String>,
}

impl Seen {
    fn served(&self) -> usize {
        self.statuses.iter().filter(|status| *status == "200").count()
    }

    fn assert_held(&self, attack: &str) {
        assert!(self.served() > 0, "{attack}");
        assert_eq!(self.served(), self.statuses.len(), "{attack}: {:?}", self.statuses);
        let resident = self.resident / 1_000_000;
        assert!(self.resident < RESIDENT_MAX, "{attack}: {resident} MB resident");
        println!(
            "PASS attack_bodies_{attack} resident_mb={resident} goal_mb={} served={} of={}",
            RESIDENT_MAX / 1_000_000,
            self.served(),
            self.statuses.len()
        );
    }
}

fn start(require_key: bool) -> Service {
    let require_key = require_key.to_string();
    let environment = [("PACEGATE_ADMIN_KEY", "secret"), ("PACEGATE_SERVER__REQUIRE_KEY", &*require_key)];
    Service::start(&[], &environment)
}

/// Sends a check with a key. Its head and body are sent separately, as many clients do.
fn check(service: &Service) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(service.url.trim_start_matches("http://"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let length = CHECK.len();
    write!(
        stream,
        "POST /v1/rate-limit/check HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\nx-api-key: secret\r\ncontent-length: {length}\r\n\r\n"
    )?;
    stream.write_all(CHECK.as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response.split(' ').nth(1).unwrap_or_default().to_owned())
}

/// Runs attackers in parallel, while another caller sends checks and the memory is measured.
fn attack(service: &Service, attackers: Vec<Box<dyn FnOnce() + Send + '_>>) -> Seen {
    let mut seen = Seen::default();
    thread::scope(|scope| {
        let attackers: Vec<_> = attackers.into_iter().map(|attacker| scope.spawn(attacker)).collect();
        while !attackers.iter().all(thread::ScopedJoinHandle::is_finished) {
            seen.statuses.push(check(service).unwrap_or_else(|error| error.to_string()));
            seen.resident = seen.resident.max(resident_bytes(service));
            thread::sleep(Duration::from_millis(10));
        }
    });
    seen
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a gRPC request, as HPACK literals.
fn head(method: &str) -> Vec<u8> {
    let mut head = vec![0x83, 0x86];
    for (name, value) in
        [(&b"\x01"[..], "x"), (b"\x04", method), (b"\x0f\x10", "application/grpc"), (b"\0\x02te", "trailers")]
    {
        head.extend_from_slice(name);
        head.push(u8::try_from(value.len()).unwrap());
        head.extend_from_slice(value.as_bytes());
    }
    head
}

/// A gRPC connection of an attacker with the maximum number of streams.
struct Streams {
    stream: TcpStream,
    incoming: Vec<u8>,
    /// The flow-control window of the connection.
    window: usize,
    open: Vec<u32>,
    next: u32,
}

impl Streams {
    fn connect(address: &str) -> std::io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        stream.set_read_timeout(Some(Duration::from_millis(20)))?;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        stream.write_all(&frame(4, 0, 0, &[]))?;
        Ok(Self { stream, incoming: Vec::new(), window: 65_535, open: Vec::new(), next: 1 })
    }

    /// Opens up to `most` streams within the maximum, each with the five bytes that announce a
    /// message.
    fn announce(&mut self, most: usize) -> std::io::Result<()> {
        let prefix = [&[0][..], &ANNOUNCED.to_be_bytes()].concat();
        for _ in 0..most.min(STREAMS - self.open.len()) {
            if self.window < prefix.len() {
                break;
            }
            let method = METHODS[self.open.len() % METHODS.len()];
            self.stream.write_all(&frame(1, 4, self.next, &head(method)))?;
            self.stream.write_all(&frame(0, 0, self.next, &prefix))?;
            self.window -= prefix.len();
            self.open.push(self.next);
            self.next += 2;
        }
        Ok(())
    }

    /// Sends a piece of the message on each stream.
    fn send(&mut self, piece: &[u8]) -> std::io::Result<()> {
        for index in 0..self.open.len() {
            if self.window >= piece.len() {
                self.stream.write_all(&frame(0, 0, self.open[index], piece))?;
                self.window -= piece.len();
            }
        }
        Ok(())
    }

    /// Reads the frames of the service: window updates and ends of streams.
    fn receive(&mut self) -> std::io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => self.incoming.extend_from_slice(&buffer[..read]),
            Err(_) => return Ok(()),
        }
        while let Some(head) = self.incoming.first_chunk::<9>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let (kind, flags) = (head[3], head[4]);
            let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let Some(payload) = self.incoming.get(9..9 + length) else { break };
            match kind {
                8 if id == 0 => {
                    self.window += u32::from_be_bytes(payload.try_into().unwrap()) as usize;
                }
                4 if flags == 0 => self.stream.write_all(&frame(4, 1, 0, &[]))?,
                3 => self.open.retain(|open| *open != id),
                0 | 1 if flags & 1 != 0 => self.open.retain(|open| *open != id),
                _ => {}
            }
            self.incoming.drain(..9 + length);
        }
        Ok(())
    }
}

/// Announces messages on the maximum number of streams, and repeatedly sends `piece` on each.
fn announce(address: &str, piece: &[u8]) -> std::io::Result<()> {
    let mut streams = Streams::connect(address)?;
    streams.announce(STREAMS)?;
    for _ in 0..effort(75, 750) {
        // Replace rejected streams slowly: this attack is about memory.
        streams.announce(2)?;
        if !piece.is_empty() {
            streams.send(piece)?;
        }
        streams.receive()?;
    }
    Ok(())
}

const METHODS: [&str; 5] = [
    "/pacegate.v1.RateLimiter/CheckRateLimit",
    "/pacegate.v1.RateLimiter/BatchCheck",
    "/pacegate.v1.RateLimiter/CheckStream",
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];

fn announced(require_key: bool, piece: &[u8]) -> Seen {
    let service = start(require_key);
    let address = service.grpc.trim_start_matches("http://");
    let attacker = |_| -> Box<dyn FnOnce() + Send + '_> { Box::new(move || drop(announce(address, piece))) };
    attack(&service, (0..CONNECTIONS).map(attacker).collect())
}

/// Sends a check without the last byte of its body, and keeps the connection open.
fn send_half(address: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    write!(
        stream,
        "POST /v1/rate-limit/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {ANNOUNCED}\r\n\r\n"
    )?;
    stream.write_all(&vec![b'x'; ANNOUNCED as usize - 1])?;
    Ok(stream)
}

fn half_sent(require_key: bool) -> Seen {
    let service = start(require_key);
    let address = service.url.trim_start_matches("http://");
    let attacker = |_| -> Box<dyn FnOnce() + Send + '_> {
        Box::new(move || {
            let held: Vec<_> = (0..100).map(|_| send_half(address)).collect();
            thread::sleep(Duration::from_secs(effort(1, 15)));
            drop(held);
        })
    };
    attack(&service, (0..8).map(attacker).collect())
}

#[test]
fn announced_messages_reserve_no_memory() {
    let _alone = alone();
    announced(false, &[]).assert_held("announced");
    announced(true, &[]).assert_held("announced_without_key");
}

#[test]
fn partly_sent_messages_are_bounded_together() {
    let _alone = alone();
    announced(false, &[b'x'; 1_000]).assert_held("partly_sent");
}

#[test]
fn half_sent_bodies_are_bounded_together() {
    let _alone = alone();
    half_sent(false).assert_held("half_sent");
    half_sent(true).assert_held("half_sent_without_key");
}
