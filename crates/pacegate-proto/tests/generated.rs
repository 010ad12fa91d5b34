//! The generated code in `src/generated` matches the files in `proto/`. It is checked in, so that
//! building the crate needs neither a protobuf compiler nor the time to build one.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;

const FILES: [&str; 2] = ["pacegate/v1/rate_limiter.proto", "envoy/service/ratelimit/v3/rls.proto"];
/// Set to write the generated code instead of comparing it.
const REGENERATE: &str = "PACEGATE_REGENERATE";

#[test]
fn generated_code_matches_the_proto_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checked_in = root.join("src/generated");
    let fresh = tempfile::tempdir().unwrap();
    generate(&root.join("proto"), fresh.path());
    if std::env::var_os(REGENERATE).is_some() {
        for name in names(fresh.path()) {
            fs::copy(fresh.path().join(&name), checked_in.join(&name)).unwrap();
        }
    }
    let remedy = format!("run `{REGENERATE}=1 cargo test -p pacegate-proto --test generated`");
    assert_eq!(names(&checked_in), names(fresh.path()), "list of generated files; {remedy}");
    for name in names(fresh.path()) {
        let same = fs::read(checked_in.join(&name)).unwrap() == fs::read(fresh.path().join(&name)).unwrap();
        assert!(same, "{} is out of date; {remedy}", name.display());
    }
}

/// Writes the messages, the services and the encoded descriptors of `proto` to `directory`.
fn generate(proto: &Path, directory: &Path) {
    let descriptors = protox::compile(FILES, [proto]).expect("the proto files compile");
    fs::write(directory.join("descriptors.bin"), descriptors.encode_to_vec()).expect("a writable directory");
    tonic_prost_build::configure()
        .out_dir(directory)
        .emit_rerun_if_changed(false)
        .include_file("all.rs")
        .compile_fds(descriptors)
        .expect("code is generated");
}

fn names(directory: &Path) -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> = fs::read_dir(directory)
        .expect("a directory")
        .flatten()
        .map(|entry| entry.file_name().into())
        .collect();
    names.sort();
    names
}
