//! Acceptance of a draft: exact, by sampling the target.

use omni_sampler::{Progress, SampleError, Sampled, Sampler, Workspace};

/// Rows of logits of a step, those of one sequence.
pub trait LogitRows {
    /// Row after the drafted token before it; row 0 is that after the sequence.
    fn row(&mut self, index: usize) -> &mut [f32];
}

impl LogitRows for Vec<Vec<f32>> {
    fn row(&mut self, index: usize) -> &mut [f32] {
        &mut self[index]
    }
}

/// Accepts tokens after a sequence: as many of the draft as the sampler agrees to, and one more of its own, or fewer
/// where the answer ends. There is a row more than drafted tokens; without a draft it is a plain step. Each token is
/// given to `each` with the workspace that has its alternatives.
///
/// # Errors
/// No token can be sampled at a position; those before it were given to `each`.
pub fn verify(
    sampler: &mut Sampler,
    draft: &[u32],
    rows: &mut impl LogitRows,
    workspace: &mut Workspace,
    mut each: impl FnMut(Sampled, &Workspace),
) -> Result<Progress, SampleError> {
    for index in 0..=draft.len() {
        let sampled = sampler.sample(rows.row(index), workspace)?;
        let progress = sampler.accept(sampled.token)?;
        each(sampled, workspace);
        if progress == Progress::Ended || draft.get(index) != Some(&sampled.token) {
            return Ok(progress);
        }
    }
    Ok(Progress::Continues)
}
