//! A table of text with aligned columns.

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// A table with a header line.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// Maximum width of a table. The widest columns of text are shortened to fit, down to a minimum.
const WIDTH_MAX: usize = 100;
const COLUMN_MIN: usize = 12;
const BETWEEN: usize = 2;

impl Table {
    pub(super) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Appends the table to `text`, with each line indented by two spaces.
    pub(super) fn render(&self, text: &mut String) {
        let header: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let widths = self.widths(&header);
        for cells in std::iter::once(&header).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), (_, align)) in cells.iter().zip(&widths).zip(&self.columns) {
                let cell = cut(cell, *width);
                let padding = " ".repeat(BETWEEN + width - length(&cell));
                match align {
                    Align::Left => {
                        line.push_str(&format!("{}{cell}{}", &padding[..BETWEEN], &padding[BETWEEN..]))
                    }
                    Align::Right => line.push_str(&format!("{padding}{cell}")),
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }

    fn widths(&self, header: &[String]) -> Vec<usize> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|cells| length(&cells[column]));
            cells.max().unwrap_or_default().max(length(&header[column]))
        };
        let mut widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        loop {
            let excess = widths.iter().map(|width| width + BETWEEN).sum::<usize>().saturating_sub(WIDTH_MAX);
            let texts = (0..widths.len()).filter(|column| self.columns[*column].1 == Align::Left);
            match texts.max_by_key(|column| widths[*column]) {
                Some(widest) if excess > 0 && widths[widest] > COLUMN_MIN => widths[widest] -= 1,
                _ => return widths,
            }
        }
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Shortens in the middle, because long identifiers often differ only at their end.
fn cut(text: &str, width: usize) -> String {
    let length = length(text);
    if length <= width {
        return text.to_owned();
    }
    let end = (width - 1) / 2;
    let start = text.chars().take(width - 1 - end);
    start.chain(['…']).chain(text.chars().skip(length - end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(rows: &[(&str, &str)]) -> String {
        let mut table = Table::new(&[("name", Align::Left), ("n", Align::Right)]);
        for (name, number) in rows {
            table.row(vec![(*name).to_owned(), (*number).to_owned()]);
        }
        let mut text = String::new();
        table.render(&mut text);
        text
    }

    #[test]
    fn columns_line_up() {
        assert_eq!(render(&[("é", "10"), ("longer", "1")]), "  name     n\n  é       10\n  longer   1\n");
    }

    #[test]
    fn widest_text_is_shortened() {
        let text = render(&[(&format!("start{}end", "x".repeat(200)), "1"), ("y", "2")]);
        assert!(text.lines().all(|line| line.chars().count() == WIDTH_MAX), "{text}");
        assert!(text.contains("  startxx") && text.contains("x…x") && text.contains("xend  1\n"), "{text}");
    }
}
