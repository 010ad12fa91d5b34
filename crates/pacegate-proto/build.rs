//! Generates the messages and services from `proto/` with a compiler written in Rust, so that
//! protoc does not have to be installed.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

const FILES: [&str; 2] = ["pacegate/v1/rate_limiter.proto", "envoy/service/ratelimit/v3/rls.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let directory = PathBuf::from(std::env::var("OUT_DIR")?);
    // The file descriptors for the reflection service.
    std::fs::write(directory.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().include_file("all.rs").compile_fds(descriptors)?;
    Ok(())
}
