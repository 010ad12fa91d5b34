//! Real servers as child processes, for tests that need more than a model.
//!
//! Everything listens on 127.0.0.1, keeps its files in a temporary directory and ends with the value that
//! started it. `redis-server` and `redis-cli` must be on the `PATH`, and for the databases MariaDB,
//! PostgreSQL and PgBouncer must be installed where Debian puts them; no service has to run already.
//!
//! - [`RedisServer`]: one server, plain or with TLS, that can be killed, restarted and frozen;
//! - [`RedisSentinels`]: a primary with replicas, watched by sentinels that replace it;
//! - [`RedisCluster`]: a cluster whose slots can be moved while it is in use;
//! - [`MariaDb`] and [`Postgres`]: one database server, which can be killed, restarted and frozen too;
//! - [`PgBouncer`]: a connection pooler in front of a [`Postgres`];
//! - [`Authority`]: signs certificates for servers and clients, good ones and bad ones;
//! - [`free_port`]: where a server can listen that is to be found at the same place again;
//! - [`FaultProxy`]: stands in front of any of them and loses, delays or cuts replies.

mod certificates;
mod cluster;
mod database;
mod mariadb;
mod pgbouncer;
mod ports;
mod postgres;
mod process;
mod proxy;
mod redis;
mod sentinels;
mod served;
mod template;

pub use certificates::{Authority, Certificates, Signed, Validity};
pub use cluster::RedisCluster;
pub use database::DatabaseServer;
pub use mariadb::MariaDb;
pub use pgbouncer::PgBouncer;
pub use ports::free as free_port;
pub use postgres::Postgres;
pub use proxy::{Fault, FaultProxy};
pub use redis::RedisServer;
pub use sentinels::RedisSentinels;
pub use served::Served;
