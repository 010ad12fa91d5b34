//! Keeps the crate root small enough to read.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// Maximum number of names in the crate root.
const NAMES_MAX: usize = 50;

/// The names that `source` exports: its `pub mod`s, and everything in its top-level `pub use`s.
fn root_names(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    // Items within modules are indented.
    let items = source.split("\npub ").skip(1);
    for item in items {
        if let Some(module) = item.strip_prefix("mod ") {
            names.push(module.split([';', ' ']).next().unwrap().to_owned());
        } else if let Some(path) = item.strip_prefix("use ") {
            let path = path.split(';').next().unwrap();
            let list = path.split_once('{').map_or(path, |(_, list)| list.trim_end_matches('}'));
            let name = |item: &str| item.trim().rsplit([':', ' ']).next().unwrap().to_owned();
            names.extend(list.split(',').map(name).filter(|name| !name.is_empty()));
        }
    }
    names
}

#[test]
fn root_has_at_most_fifty_names() {
    let names = root_names(include_str!("../src/lib.rs"));
    for known in ["Limiter", "Limit", "Check", "Decision", "store", "rate_limit"] {
        assert!(names.iter().any(|name| name == known), "{known} is not among {names:?}");
    }
    assert!(names.len() <= NAMES_MAX, "{} names: {names:?}", names.len());
}

#[test]
fn every_exported_name_is_counted() {
    let source = "\nmod a;\npub mod b;\npub mod c {\n    pub use x::Y;\n}\npub use d::E;\npub use f::{\n    G, H as I,\n};\n";
    assert_eq!(root_names(source), ["b", "c", "E", "G", "I"]);
}
