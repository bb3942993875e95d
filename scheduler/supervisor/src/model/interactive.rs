//! Requests that clients wait for, as opposed to those of batches: how many there are, and when the last one ended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Interactive requests of one model.
#[derive(Debug, Default)]
pub struct Interactive(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: u32,
    last_end: Option<Instant>,
}

/// An interactive request, until it is dropped.
#[derive(Debug)]
pub struct InteractiveRequest(Arc<Interactive>);

impl Interactive {
    /// Begins a request.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> InteractiveRequest {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).open += 1;
        InteractiveRequest(Arc::clone(self))
    }

    /// Requests that wait or are in flight, and the time at which the last other one ended.
    #[must_use]
    pub fn load(&self) -> (u32, Option<Instant>) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (state.open, state.last_end)
    }
}

impl Drop for InteractiveRequest {
    fn drop(&mut self) {
        let mut state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.open -= 1;
        state.last_end = Some(Instant::now());
    }
}

#[test]
fn requests_are_counted_until_they_are_dropped() {
    let interactive = Arc::<Interactive>::default();
    assert_eq!(interactive.load(), (0, None));
    let (first, second) = (interactive.begin(), interactive.begin());
    drop(first);
    assert!(matches!(interactive.load(), (1, Some(_))));
    drop(second);
    assert_eq!(interactive.load().0, 0);
}
