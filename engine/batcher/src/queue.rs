//! Order of sequences, in the queue and among those that run.

use std::time::Duration;

/// Seniority; a smaller one goes first.
///
/// A level of priority counts as much as a fixed waiting time. Waiting raises all ranks alike, so a rank is constant,
/// and a request is passed only by those that arrive within a bounded time after it: none starves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Time of arrival less the time that the priority counts for, in nanoseconds.
    due: i128,
    /// Order of arrival.
    number: u64,
    choice: u32,
}

impl Rank {
    pub(crate) fn new(arrival: Duration, priority: i16, ageing: Duration, number: u64) -> Self {
        let lead = ageing.as_nanos().cast_signed() * i128::from(priority);
        Self { due: arrival.as_nanos().cast_signed() - lead, number, choice: 0 }
    }

    /// Rank of another choice of the same request.
    pub(crate) const fn of_choice(self, choice: u32) -> Self {
        Self { choice, ..self }
    }
}

/// Sequences in order of seniority.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: Vec<(Rank, u32)>,
}

impl Queue {
    /// Queue with memory for that many sequences.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { entries: Vec::with_capacity(capacity) }
    }

    pub(crate) fn insert(&mut self, rank: Rank, slot: u32) {
        let at = self.entries.partition_point(|(other, _)| *other < rank);
        self.entries.insert(at, (rank, slot));
    }

    pub(crate) fn remove(&mut self, rank: Rank) {
        if let Ok(at) = self.entries.binary_search_by_key(&rank, |(rank, _)| *rank) {
            self.entries.remove(at);
        }
    }

    /// Sequence at a place of the order.
    pub(crate) fn get(&self, at: usize) -> Option<u32> {
        self.entries.get(at).map(|(_, slot)| *slot)
    }

    /// Most junior sequence.
    pub(crate) fn last(&self) -> Option<u32> {
        self.entries.last().map(|(_, slot)| *slot)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(|(_, slot)| *slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGEING: Duration = Duration::from_secs(1);

    fn rank(arrival_ms: u64, priority: i16, number: u64) -> Rank {
        Rank::new(Duration::from_millis(arrival_ms), priority, AGEING, number)
    }

    #[test]
    fn a_level_of_priority_counts_as_much_as_a_second_of_waiting() {
        assert!(rank(999, 1, 2) < rank(0, 0, 1));
        assert!(rank(1001, 1, 2) > rank(0, 0, 1));
        assert!(rank(0, 0, 1) < rank(0, 0, 2));
    }

    #[test]
    fn entries_stay_in_order() {
        let mut queue = Queue::default();
        for number in [5, 1, 4, 2, 3] {
            queue.insert(rank(number, 0, number), number as u32);
        }
        queue.remove(rank(4, 0, 4));
        queue.remove(rank(4, 0, 4));
        assert_eq!(queue.iter().collect::<Vec<_>>(), [1, 2, 3, 5]);
        assert_eq!((queue.get(0), queue.last(), queue.len()), (Some(1), Some(5), 4));
    }
}
