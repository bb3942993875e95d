//! Set of processors in the kernel's list form, `0-3,8` (cpuset(7), "List format"). Pure.

use std::collections::BTreeSet;
use std::fmt;

/// Bound of a processor's number, above every kernel's: limits the memory that a foreign text can take.
const MOST: u32 = 1 << 13;

/// Numbers of processors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// Parses the kernel's text; `None` when it is no list.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| text.parse().ok().filter(|number| *number < MOST);
        let ranges = text.trim().split(',').filter(|range| !range.is_empty()).map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(number(first)?..=number(last)?)
        });
        ranges.collect::<Option<Vec<_>>>().map(|ranges| Self(ranges.into_iter().flatten().collect()))
    }

    /// Numbers, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Membership of a processor.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.0.contains(&number)
    }

    /// Number of processors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// `true` for a set of no processors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(numbers: T) -> Self {
        Self(numbers.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = numbers.next() {
            let mut last = first;
            while numbers.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            write!(out, "{comma}{first}")?;
            if last > first {
                write!(out, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms() {
        for (text, numbers, shown) in [
            ("0-1\n", vec![0, 1], "0-1"),
            ("0", vec![0], "0"),
            ("", vec![], ""),
            ("3,0-1,8-9,2", vec![0, 1, 2, 3, 8, 9], "0-3,8-9"),
            ("5,7", vec![5, 7], "5,7"),
        ] {
            let set = CpuSet::parse(text).unwrap();
            assert_eq!(set.iter().collect::<Vec<_>>(), numbers, "{text}");
            assert_eq!(set.to_string(), shown);
        }
        for bad in ["a", "1-", "-1", "0-99999999", "1 2"] {
            assert_eq!(CpuSet::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_formatted_list_parses_to_the_same_numbers(numbers in prop::collection::btree_set(0..MOST, 0..40)) {
            let set = CpuSet(numbers);
            prop_assert_eq!(CpuSet::parse(&set.to_string()), Some(set));
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(text in "[ 0-9,a-]{0,40}") {
            let _ = CpuSet::parse(&text);
        }
    }
}
