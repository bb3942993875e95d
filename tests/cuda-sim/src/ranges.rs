//! Sets of bytes of one allocation. Pure.

use std::ops::Range;

/// Ranges in order, that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    pub(crate) fn of(range: Range<u64>) -> Self {
        Self(if range.is_empty() { Vec::new() } else { vec![range] })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Address of the first byte.
    pub(crate) fn start(&self) -> u64 {
        self.0.first().map_or(0, |range| range.start)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let mut all: Vec<Range<u64>> = self.0.iter().chain(&other.0).cloned().collect();
        all.sort_by_key(|range| range.start);
        self.0.clear();
        for range in all {
            match self.0.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => self.0.push(range),
            }
        }
    }

    pub(crate) fn and(&self, other: &Self) -> Self {
        let common = |one: &Range<u64>, two: &Range<u64>| one.start.max(two.start)..one.end.min(two.end);
        let all = self.0.iter().flat_map(|one| other.0.iter().map(move |two| common(one, two)));
        Self(all.filter(|range| !range.is_empty()).collect())
    }

    pub(crate) fn without(&self, other: &Self) -> Self {
        let mut left = self.0.clone();
        for hole in &other.0 {
            left = left
                .into_iter()
                .flat_map(|range| [range.start..range.end.min(hole.start), range.start.max(hole.end)..range.end])
                .filter(|range| range.start < range.end)
                .collect();
        }
        Self(left)
    }

    /// The first `bytes` of it.
    pub(crate) fn first(&self, bytes: u64) -> Self {
        let mut left = bytes;
        let mut found = Vec::new();
        for range in &self.0 {
            let length = (range.end - range.start).min(left);
            if length > 0 {
                found.push(range.start..range.start + length);
            }
            left -= length;
        }
        Self(found)
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::default();
        set.0.extend(ranges.into_iter().filter(|range| !range.is_empty()));
        let unsorted = std::mem::take(&mut set.0);
        set.add(&Self(unsorted));
        set
    }
}

#[test]
fn sets_of_bytes() {
    let set = |ranges: &[(u64, u64)]| ranges.iter().map(|(start, end)| *start..*end).collect::<Ranges>();
    let both = set(&[(0, 10), (20, 30)]);
    let mut sum = both.clone();
    sum.add(&set(&[(5, 20), (40, 41)]));
    assert_eq!(sum, set(&[(0, 30), (40, 41)]));
    assert_eq!(both.and(&set(&[(5, 25)])), set(&[(5, 10), (20, 25)]));
    assert_eq!(both.without(&set(&[(5, 25)])), set(&[(0, 5), (25, 30)]));
    assert_eq!(both.without(&set(&[(0, 40)])), Ranges::default());
    assert_eq!(both.first(13), set(&[(0, 10), (20, 23)]));
    assert_eq!((both.bytes(), both.first(0).is_empty(), set(&[(3, 3)])), (20, true, Ranges::default()));
}
