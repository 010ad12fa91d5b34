//! Real servers as child processes.
//!
//! Every server listens on 127.0.0.1, keeps its files in a temporary directory and stops when its
//! value is dropped. `redis-server` and `redis-cli` must be on the `PATH`. MariaDB, PostgreSQL and
//! PgBouncer must be installed where Debian installs them. No service needs to be running.
//!
//! - [`RedisServer`]: one server, plain or with TLS, that can be killed, restarted and frozen.
//! - [`RedisSentinels`]: a primary with replicas, monitored by sentinels that fail over.
//! - [`RedisCluster`]: a cluster with slots that can be moved while it is in use.
//! - [`MariaDb`] and [`Postgres`]: one database server, which can be killed, restarted and frozen
//!   too.
//! - [`PgBouncer`]: a connection pooler in front of a [`Postgres`].
//! - [`Authority`]: signs valid and invalid certificates for servers and clients.
//! - [`free_port`]: a port for a server that must keep its address across restarts.
//! - [`FaultProxy`]: a proxy in front of any of them that drops, delays or cuts replies.

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
