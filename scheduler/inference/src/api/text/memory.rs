//! Memory of a request for generated text: its body as it came, what was parsed of it, and its bodies for the engine.
//!
//! Invariant: all of it counts against the model's share while the request waits, whatever a client has packed into a
//! small body.

use omni_body::{BodyPermit, BudgetShare};
use omni_request_error::Failure;
use std::sync::Arc;
use std::time::Instant;

/// Memory of one request.
#[derive(Debug)]
pub(super) struct RequestMemory {
    permit: BodyPermit,
    /// Bytes of the parsed request.
    parsed: u64,
    /// Bytes that are held until the answer has ended.
    kept: u64,
}

impl RequestMemory {
    /// Counts a request that takes so many bytes once it is parsed. `body`: memory of its body, which counts for the model from
    /// now on.
    ///
    /// # Errors
    /// The model's share has no room.
    pub(super) fn new(body: Option<BodyPermit>, parsed: u64, share: &Arc<BudgetShare>) -> Result<Self, Failure> {
        let permit = match body {
            Some(mut body) => body.move_to(share, Instant::now()).then_some(body).ok_or(Failure::NodeBusy)?,
            None => share.body(),
        };
        let mut memory = Self { permit, parsed: 0, kept: 0 };
        memory.hold(parsed)?;
        memory.parsed = parsed;
        Ok(memory)
    }

    /// Counts so many bytes that are held until the engine begins to answer.
    ///
    /// # Errors
    /// The model's share has no room.
    pub(super) fn hold(&mut self, bytes: u64) -> Result<(), Failure> {
        if bytes > 0 && !self.permit.grow(bytes, Instant::now()) {
            return Err(Failure::NodeBusy);
        }
        Ok(())
    }

    /// Counts so many bytes that are held until the answer has ended.
    ///
    /// # Errors
    /// The model's share has no room.
    pub(super) fn keep(&mut self, bytes: u64) -> Result<(), Failure> {
        self.hold(bytes)?;
        self.kept += bytes;
        Ok(())
    }

    /// Permits once the parsed request is about to be dropped: of the bodies, for all choices, and of what is kept.
    pub(super) fn into_permits(mut self) -> (Arc<BodyPermit>, BodyPermit) {
        let kept = self.permit.split(self.kept);
        drop(self.permit.split(self.parsed));
        (Arc::new(self.permit), kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_body::{BodyBudget, BodyMetrics};

    #[test]
    fn each_part_is_counted_for_as_long_as_it_is_held() {
        let budget = BodyBudget::new(2000, 1, BodyMetrics::default());
        let (arrivals, share) = (budget.share(), budget.share());
        let mut body = arrivals.body();
        assert!(body.grow(100, Instant::now()));
        let mut memory = RequestMemory::new(Some(body), 300, &share).unwrap();
        memory.hold(50).unwrap();
        memory.keep(7).unwrap();
        assert_eq!(budget.reserved(), 457);
        assert_eq!(memory.hold(1000), Err(Failure::NodeBusy));
        let (bodies, kept) = memory.into_permits();
        assert_eq!((bodies.bytes(), kept.bytes(), budget.reserved()), (150, 7, 157));
        drop(bodies);
        assert_eq!(budget.reserved(), 7);
        drop(kept);
        assert_eq!(budget.reserved(), 0);
        assert!(RequestMemory::new(None, 1001, &share).is_err());
    }
}
