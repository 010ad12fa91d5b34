//! The documents are true: commands print what is shown, examples are valid, links lead somewhere.
//!
//! What is special about a block is said in HTML comments above it:
//!
//! - `<!-- file: NAME -->` writes the block to a file for the commands below it,
//! - `<!-- service: NAME -->` does that and restarts the page's service with it,
//! - `<!-- not run: reason -->` exempts a `console` block,
//! - `<!-- not a configuration: reason -->` exempts a `yaml` block.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod markdown;
mod transcript;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use markdown::{documents, every_page, root};

fn assert_none(failures: &[String]) {
    assert!(failures.is_empty(), "{} problems\n\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn console_blocks_print_what_is_documented() {
    let pages = documents();
    let next = AtomicUsize::new(0);
    // A few pages at a time: each has a service, and clients on the pages have timeouts.
    let run = || {
        let mut failures = Vec::new();
        while let Some(page) = pages.get(next.fetch_add(1, Ordering::Relaxed)) {
            failures.extend(transcript::run(page));
        }
        failures
    };
    let failures: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_none(&failures);
}

#[test]
fn yaml_blocks_are_valid_configurations() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pacegate.yaml");
    let mut failures = Vec::new();
    for page in documents() {
        for block in page.blocks().iter().filter(|block| block.language == "yaml") {
            let place = format!("{}:{}", page.name, block.line);
            if block.marks.contains_key("not a configuration") {
                if let Err(error) = serde_saphyr::from_str::<serde_json::Value>(&block.text) {
                    failures.push(format!("{place}: {error}"));
                }
                continue;
            }
            std::fs::write(&file, &block.text).unwrap();
            let mut check = Command::new(env!("CARGO_BIN_EXE_pacegate"));
            let output = check.args(["config", "check"]).arg(&file).output().unwrap();
            if !output.status.success() {
                failures.push(format!("{place}: {}", String::from_utf8_lossy(&output.stderr)));
            }
        }
    }
    assert_none(&failures);
}

/// One value, or one on each line. An abbreviated one (`…`) cannot be parsed.
#[test]
fn json_blocks_parse() {
    let mut failures = Vec::new();
    for page in documents() {
        for block in page.blocks().iter().filter(|block| block.language == "json") {
            let values: Result<Vec<serde_json::Value>, _> =
                serde_json::Deserializer::from_str(&block.text).into_iter().collect();
            if let Some(error) = values.err().filter(|_| !block.text.contains('…')) {
                failures.push(format!("{}:{}: {error}", page.name, block.line));
            }
        }
    }
    assert_none(&failures);
}

/// Snippets for clients are saved as files that the page's commands run.
#[test]
fn python_and_node_snippets_are_executed() {
    let pages = documents();
    let page = pages.iter().find(|page| page.name == "docs/clients.md").unwrap();
    let blocks = page.blocks();
    for (language, program) in [("python", "python3"), ("javascript", "node")] {
        let snippets: Vec<_> = blocks.iter().filter(|block| block.language == language).collect();
        assert!(!snippets.is_empty(), "no snippet in {language}");
        for snippet in snippets {
            let file =
                snippet.marks.get("file").unwrap_or_else(|| panic!("line {}: not a file", snippet.line));
            let command = format!("$ {program} {file}");
            let run = blocks.iter().any(|block| block.language == "console" && block.text.contains(&command));
            assert!(run, "line {}: no block runs `{command}`", snippet.line);
        }
    }
}

#[test]
fn readme_has_at_most_150_lines() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(text.lines().count() <= 150, "{} lines", text.lines().count());
}

#[test]
fn relative_links_lead_to_files_and_headings() {
    let pages = every_page();
    let mut failures = Vec::new();
    for page in &pages {
        let directory = root().join(&page.name).parent().unwrap().to_owned();
        for target in page.links() {
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = if path.is_empty() { root().join(&page.name) } else { directory.join(path) };
            let Ok(file) = file.canonicalize() else {
                failures.push(format!("{}: {target}: no such file", page.name));
                continue;
            };
            let linked = pages.iter().find(|page| root().join(&page.name) == file);
            if !anchor.is_empty() && linked.is_some_and(|page| !page.anchors().contains(anchor)) {
                failures.push(format!("{}: {target}: no such heading", page.name));
            }
        }
    }
    assert_none(&failures);
}
