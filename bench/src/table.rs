//! Markdown tables, so that the output can be pasted.

use std::fmt;

/// A table that is shown as Markdown.
#[derive(Debug)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows. The first column holds names, the others figures.
    pub fn new<const COLUMNS: usize>(head: [&str; COLUMNS]) -> Self {
        Self { head: head.map(String::from).to_vec(), rows: Vec::new() }
    }

    /// Adds a row, which has as many cells as the head.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "| {} |", self.head.join(" | "))?;
        writeln!(formatter, "| --- {}|", "| ---: ".repeat(self.head.len().saturating_sub(1)))?;
        for row in &self.rows {
            writeln!(formatter, "| {} |", row.join(" | "))?;
        }
        Ok(())
    }
}

/// A whole number with its digits grouped.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_digits() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
    }

    #[test]
    fn shows_markdown() {
        let mut table = Table::new(["a", "b"]);
        table.row(["x".into(), "1".into()]);
        assert_eq!(table.to_string(), "| a | b |\n| --- | ---: |\n| x | 1 |\n");
    }
}
