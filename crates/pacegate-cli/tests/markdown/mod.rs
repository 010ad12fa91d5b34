//! Markdown files: their code blocks, headings and links.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use regex::Regex;

/// A Markdown file of the repository.
pub(crate) struct Page {
    /// Path from the root of the repository, such as `docs/rules.md`.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// A fenced code block.
#[derive(Debug)]
pub(crate) struct Block {
    /// Line of the opening fence, from 1.
    pub(crate) line: usize,
    pub(crate) language: String,
    /// HTML comments `<!-- key: value -->` directly above the block.
    pub(crate) marks: BTreeMap<String, String>,
    pub(crate) text: String,
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns `README.md` and everything below `docs/`.
pub(crate) fn documents() -> Vec<Page> {
    every_page()
        .into_iter()
        .filter(|page| page.name == "README.md" || page.name.starts_with("docs/"))
        .collect()
}

/// Returns every Markdown file of the repository.
pub(crate) fn every_page() -> Vec<Page> {
    let root = root();
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    let mut pages: Vec<Page> = paths
        .into_iter()
        .map(|path| Page {
            name: path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned(),
            text: std::fs::read_to_string(&path).unwrap(),
        })
        .collect();
    pages.sort_by(|a, b| a.name.cmp(&b.name));
    pages
}

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && !["target", "node_modules"].contains(&name) {
            collect(&path, paths);
        } else if name.ends_with(".md") {
            paths.push(path);
        }
    }
}

impl Page {
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mark = Regex::new(r"^<!-- ([a-z ]+): (.*) -->$").unwrap();
        let mut blocks = Vec::new();
        let mut marks = BTreeMap::new();
        let mut lines = self.text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let inner = line.trim_start();
            if let Some(language) = inner.strip_prefix("```") {
                let indent = line.len() - inner.len();
                let mut text = String::new();
                for (_, line) in lines.by_ref().take_while(|(_, line)| line.trim() != "```") {
                    text.push_str(line.get(indent..).unwrap_or_default());
                    text.push('\n');
                }
                let language = language.split([',', ' ']).next().unwrap().to_owned();
                blocks.push(Block { line: number + 1, language, marks: std::mem::take(&mut marks), text });
            } else if let Some(found) = mark.captures(inner) {
                marks.insert(found[1].to_owned(), found[2].to_owned());
            } else if !inner.is_empty() {
                marks.clear();
            }
        }
        blocks
    }

    /// Returns the anchors of the page's headings, made as GitHub makes them.
    pub(crate) fn anchors(&self) -> BTreeSet<String> {
        let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)").unwrap();
        let mut seen = BTreeMap::<String, usize>::new();
        let mut anchors = BTreeSet::new();
        for line in self.prose().lines().filter(|line| line.starts_with('#')) {
            let title = link.replace_all(line.trim_start_matches('#').trim(), "$1").to_lowercase();
            let slug: String = title
                .chars()
                .filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter))
                .map(|letter| if letter == ' ' { '-' } else { letter })
                .collect();
            let times = seen.entry(slug.clone()).or_default();
            anchors.insert(if *times == 0 { slug } else { format!("{slug}-{times}") });
            *times += 1;
        }
        anchors
    }

    /// Returns the targets of links and images that are not URLs.
    pub(crate) fn links(&self) -> Vec<String> {
        let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
        let code = Regex::new(r"`[^`\n]*`").unwrap();
        let prose = self.prose();
        let prose = code.replace_all(&prose, "");
        link.captures_iter(&prose)
            .map(|found| found[1].to_owned())
            .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
            .collect()
    }

    /// The text without its code blocks.
    fn prose(&self) -> String {
        let mut fenced = false;
        let lines = self.text.lines().filter(|line| {
            let fence = line.trim_start().starts_with("```");
            fenced ^= fence;
            !fence && !fenced
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}
