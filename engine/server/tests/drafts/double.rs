//! Backend double for drafts: simulated, with steps that take real time, and rows that may be of another model.

use omni_kernels::{Backend, BackendError, StepPlan};
use omni_kernels_fake::{Cost, SimulatedBackend, Stepped};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Number of tokens.
pub(crate) const VOCABULARY: usize = 64;

/// Backend double before it is made.
pub(crate) struct Double {
    time: Duration,
    /// Rows are shifted by so many tokens: none, and drafts are always right.
    shift: usize,
    steps: Arc<AtomicUsize>,
    /// Steps after which all fail.
    good_steps: usize,
}

impl Double {
    pub(crate) fn new(time: Duration, shift: usize) -> Self {
        Self { time, shift, steps: Arc::default(), good_steps: usize::MAX }
    }

    pub(crate) fn failing_after(mut self, steps: usize) -> Self {
        self.good_steps = steps;
        self
    }

    /// Count of its steps.
    pub(crate) fn steps(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.steps)
    }

    pub(crate) fn backend(self) -> impl Backend + 'static {
        let Self { time, shift, steps, good_steps } = self;
        let inner = SimulatedBackend::new(VOCABULARY, Cost::default());
        Stepped::new(inner, move |inner: &mut SimulatedBackend, plan: &StepPlan| {
            if steps.fetch_add(1, Ordering::Relaxed) >= good_steps {
                return Err(BackendError::Plan("the test has it fail".to_owned()));
            }
            if !time.is_zero() {
                std::thread::sleep(time);
            }
            inner.step(plan)?;
            for row in 0..plan.logits() {
                inner.row(row).rotate_right(shift);
            }
            Ok(())
        })
    }
}
