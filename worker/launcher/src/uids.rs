//! Which user id the next instance gets: one that nothing alive has, and not one that was free a moment ago. A zygote and
//! its instances have one together, which is free when the last of them is gone. Pure.

use std::collections::BTreeMap;

/// The node's range of user ids for instances.
#[derive(Debug)]
pub(super) struct UidSlots {
    base: u32,
    count: u32,
    next: u32,
    /// How many have it.
    used: BTreeMap<u32, u32>,
}

impl UidSlots {
    /// `count` user ids from `base` on.
    pub(super) fn new(base: u32, count: u32) -> Self {
        Self { base, count, next: 0, used: BTreeMap::new() }
    }

    /// Next free user id, in turn; `None` when all are in use.
    pub(super) fn take(&mut self) -> Option<u32> {
        let free = (0..self.count)
            .map(|step| self.base + (self.next + step) % self.count)
            .find(|uid| !self.used.contains_key(uid))?;
        self.next = (free - self.base + 1) % self.count;
        self.used.insert(free, 1);
        Some(free)
    }

    /// Adds a holder of a user id: with a zygote that has it already, or of an earlier launcher.
    pub(super) fn share(&mut self, uid: u32) {
        *self.used.entry(uid).or_default() += 1;
    }

    /// Removes a holder.
    pub(super) fn give_back(&mut self, uid: u32) {
        if let Some(count) = self.used.get_mut(&uid) {
            *count = count.saturating_sub(1);
        }
        self.used.retain(|_, count| *count > 0);
    }

    /// How many have it.
    pub(super) fn users(&self, uid: u32) -> u32 {
        self.used.get(&uid).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn uids_are_given_in_turn_and_never_twice() {
        let mut slots = UidSlots::new(100, 3);
        slots.share(101);
        assert_eq!([slots.take(), slots.take(), slots.take()], [Some(100), Some(102), None]);
        slots.give_back(100);
        slots.give_back(101);
        assert_eq!([slots.take(), slots.take()], [Some(100), Some(101)]);
        slots.give_back(100);
        slots.give_back(102);
        assert_eq!(slots.take(), Some(102), "not the one that was given back last");
        assert_eq!(UidSlots::new(100, 0).take(), None);
    }

    #[test]
    fn a_uid_is_shared_until_the_last_holder_is_gone() {
        let mut slots = UidSlots::new(100, 1);
        assert_eq!(slots.take(), Some(100));
        slots.share(100);
        assert_eq!((slots.users(100), slots.take()), (2, None));
        slots.give_back(100);
        assert_eq!((slots.users(100), slots.take()), (1, None));
        slots.give_back(100);
        assert_eq!((slots.users(100), slots.take()), (0, Some(100)));
    }

    proptest! {
        #[test]
        fn no_two_hold_the_same_uid(steps in proptest::collection::vec(0_u32..12, 0..60)) {
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
