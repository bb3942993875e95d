//! Memory of bodies whose models are not known yet, since a body names its model.
//!
//! Invariant: whatever the holder of a token sends, the next one finds room. Clients without a token cannot be told
//! apart: they have one share together.

use omni_auth::TokenHolder;
use omni_body::{BodyBudget, BudgetShare};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Shares of the memory for bodies, by clients.
#[derive(Debug)]
pub(crate) struct Arrivals {
    budget: Arc<BodyBudget>,
    without_token: Arc<BudgetShare>,
    /// By the names of the holders, of which there are as many as tokens at most.
    holders: Mutex<HashMap<String, Arc<BudgetShare>>>,
}

impl Arrivals {
    pub(crate) fn new(budget: Arc<BodyBudget>) -> Self {
        Self { without_token: budget.share(), budget, holders: Mutex::default() }
    }

    /// Share of a client. `holder`: that of its token.
    pub(crate) fn share(&self, holder: Option<&TokenHolder>) -> Arc<BudgetShare> {
        self.share_of(holder.map(TokenHolder::name))
    }

    fn share_of(&self, holder: Option<&str>) -> Arc<BudgetShare> {
        let Some(name) = holder else { return Arc::clone(&self.without_token) };
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = holders.get(name) {
            return Arc::clone(share);
        }
        let share = self.budget.share();
        holders.insert(name.to_owned(), Arc::clone(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_body::BodyMetrics;
    use std::time::Instant;

    #[test]
    fn one_holder_leaves_room_to_the_next() {
        let now = Instant::now();
        let arrivals = Arrivals::new(BodyBudget::new(100, 1, BodyMetrics::default()));
        let [mut first, mut again, mut second, mut without] =
            [Some("a"), Some("a"), Some("b"), None].map(|holder| arrivals.share_of(holder).body());
        assert!(first.grow(50, now) && !again.grow(1, now), "it has its half");
        assert!(second.grow(25, now) && without.grow(13, now), "the others have half of the rest each");
        drop(first);
        assert!(again.grow(1, now));
        assert_eq!(arrivals.holders.lock().unwrap().len(), 2);
    }
}
