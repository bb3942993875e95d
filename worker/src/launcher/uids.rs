//! Which user id the next instance gets: one that no living instance has, and not one that was free a moment ago. Pure.

use std::collections::BTreeSet;

/// The node's range of user ids for instances.
#[derive(Debug)]
pub(super) struct UidSlots {
    base: u32,
    count: u32,
    next: u32,
    used: BTreeSet<u32>,
}

impl UidSlots {
    /// `count` user ids from `base` on.
    pub(super) fn new(base: u32, count: u32) -> Self {
        Self { base, count, next: 0, used: BTreeSet::new() }
    }

    /// A free one, in turn; `None` when all are in use.
    pub(super) fn take(&mut self) -> Option<u32> {
        let free = (0..self.count)
            .map(|step| self.base + (self.next + step) % self.count)
            .find(|uid| !self.used.contains(uid))?;
        self.next = (free - self.base + 1) % self.count;
        self.used.insert(free);
        Some(free)
    }

    /// Marks one as in use: an instance of an earlier launcher has it.
    pub(super) fn adopt(&mut self, uid: u32) {
        self.used.insert(uid);
    }

    /// Nobody has it any more.
    pub(super) fn give_back(&mut self, uid: u32) {
        self.used.remove(&uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn in_turn_and_never_twice() {
        let mut slots = UidSlots::new(100, 3);
        slots.adopt(101);
        assert_eq!([slots.take(), slots.take(), slots.take()], [Some(100), Some(102), None]);
        slots.give_back(100);
        slots.give_back(101);
        assert_eq!([slots.take(), slots.take()], [Some(100), Some(101)]);
        slots.give_back(100);
        slots.give_back(102);
        assert_eq!(slots.take(), Some(102), "not the one that was given back last");
        assert_eq!(UidSlots::new(100, 0).take(), None);
    }

    proptest! {
        #[test]
        fn no_two_hold_the_same(steps in proptest::collection::vec(0_u32..12, 0..60)) {
            let mut slots = UidSlots::new(7, 5);
            let mut held = BTreeSet::new();
            for step in steps {
                if step < 5 {
                    slots.give_back(7 + step);
                    held.remove(&(7 + step));
                } else if let Some(uid) = slots.take() {
                    prop_assert!((7..12).contains(&uid));
                    prop_assert!(held.insert(uid));
                } else {
                    prop_assert_eq!(held.len(), 5);
                }
            }
        }
    }
}
