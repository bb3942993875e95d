//! Plain aligned tables: columns two spaces apart, no lines, no colour, nothing behind the last cell of a row.
//!
//! Used by every command that lists. Invariants: a row has as many cells as there are columns, an empty cell is written
//! `-` so that `awk` counts right, and foreign text in a cell cannot break the table.

use std::fmt;

use crate::human::printable;

/// On which side the padding of a column goes.
#[derive(Clone, Copy)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table in the making, with `N` columns.
pub(crate) struct Table<const N: usize> {
    columns: [(&'static str, Align); N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// An empty table with these headings.
    pub(crate) fn new(columns: [(&'static str, Align); N]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| if cell.is_empty() { "-".to_owned() } else { printable(&cell) }));
    }

    fn widths(&self) -> [usize; N] {
        let mut widths = self.columns.map(|(heading, _)| heading.chars().count());
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let headings = self.columns.map(|(heading, _)| heading.to_owned());
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = String::new();
            for (index, ((cell, width), (_, align))) in row.iter().zip(widths).zip(self.columns).enumerate() {
                let gap = if index == 0 { "" } else { "  " };
                match align {
                    Align::Left => line.push_str(&format!("{gap}{cell:<width$}")),
                    Align::Right => line.push_str(&format!("{gap}{cell:>width$}")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_rows_end_with_their_last_cell() {
        let mut table = Table::new([("NAME", Align::Left), ("SIZE", Align::Right), ("NOTE", Align::Left)]);
        table.row(["cowsay".to_owned(), "7GiB".to_owned(), String::new()]);
        table.row(["é".to_owned(), "12".to_owned(), "two\nlines".to_owned()]);
        assert_eq!(table.to_string(), "NAME    SIZE  NOTE\ncowsay  7GiB  -\né         12  two\\nlines\n");
    }

    #[test]
    fn an_empty_table_is_its_headings() {
        assert_eq!(Table::new([("NAME", Align::Left)]).to_string(), "NAME\n");
    }
}
