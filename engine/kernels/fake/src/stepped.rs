//! Backend whose steps a test computes: slowly, not at all, or with other rows.

use omni_kernels::{Backend, BackendError, BlockId, Capacity, Facts, StepPlan};

/// Backend that is another one in all but its steps.
#[derive(Debug)]
pub struct Stepped<B, F> {
    inner: B,
    step: F,
}

impl<B, F> Stepped<B, F>
where
    B: Backend,
    F: FnMut(&mut B, &StepPlan) -> Result<(), BackendError> + Send,
{
    /// The backend `inner`, each step of which is computed by `step`.
    pub fn new(inner: B, step: F) -> Self {
        Self { inner, step }
    }
}

impl<B, F> Backend for Stepped<B, F>
where
    B: Backend,
    F: FnMut(&mut B, &StepPlan) -> Result<(), BackendError> + Send,
{
    fn facts(&self) -> &Facts {
        self.inner.facts()
    }

    fn bytes(&self, capacity: Capacity) -> u64 {
        self.inner.bytes(capacity)
    }

    fn reserve(&mut self, capacity: Capacity) -> Result<(), BackendError> {
        self.inner.reserve(capacity)
    }

    fn step(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        (self.step)(&mut self.inner, plan)
    }

    fn row(&mut self, row: usize) -> &mut [f32] {
        self.inner.row(row)
    }

    fn export(&self, block: BlockId, into: &mut [u8]) {
        self.inner.export(block, into);
    }

    fn import(&mut self, block: BlockId, from: &[u8]) {
        self.inner.import(block, from);
    }

    fn sleep(&mut self) -> Result<u64, BackendError> {
        self.inner.sleep()
    }

    fn wake(&mut self) -> Result<(), BackendError> {
        self.inner.wake()
    }
}
