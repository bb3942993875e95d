//! Idle instances that make room on a card. Which of them do is decided by the cards' own ledger; that they may, and what
//! they are told, is the same as for the node's capacity.

use super::reservation::{CapacityHandle, Room, Told};
use crate::policy::capacity::{Cause, Event, Others, SeatKey};
use std::sync::Arc;

impl CapacityHandle {
    /// Has `choose` decide which instances go for the one with this seat, and tells them. They are out of the others' reach
    /// at once: no second one counts on them, and no model loses more than it may.
    pub fn displace_from_card<T>(
        &self,
        asker: SeatKey,
        cause: Cause,
        choose: impl FnOnce(Others<SeatKey>) -> (Vec<SeatKey>, T),
    ) -> T {
        let mut book = self.0.book();
        book.look();
        let others = book.ledger.others(asker, cause, self.0.started.elapsed());
        let Some((purpose, others)) = others else { return choose(Others::default()).1 };
        let by = book.ledger.model(asker).map(Arc::clone);
        let (displaced, chosen) = choose(others);
        for seat in displaced {
            if let Some(by) = by.clone() {
                book.step(&Event::Leaves(seat));
                book.metrics.displaced();
                book.told.push((seat, Told::Displaced { by, purpose, room: Room::Card }));
            }
        }
        drop(book);
        self.0.notify.notify_one();
        chosen
    }
}
