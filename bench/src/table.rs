//! Markdown tables.

use std::fmt;

/// A table in Markdown.
#[derive(Debug)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table without rows. The first column has names, the others figures.
    pub fn new<const COLUMNS: usize>(head: [&str; COLUMNS]) -> Self {
        Self { head: head.map(String::from).to_vec(), rows: Vec::new() }
    }

    /// Adds a row, with the same number of cells as the header.
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

/// Returns a whole number with grouped digits.
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
