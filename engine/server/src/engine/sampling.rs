//! Samples of a step: tokens of answers, log probabilities of prompts, embeddings.

use super::run::{Run, Step};
use omni_kernels::Backend;
use omni_speculation::LogitRows;

/// Rows of a backend from one on.
struct Rows<'a, B> {
    backend: &'a mut B,
    first: usize,
}

impl<B: Backend> LogitRows for Rows<'_, B> {
    fn row(&mut self, index: usize) -> &mut [f32] {
        self.backend.row(self.first + index)
    }
}

/// The only row of a choice that shares it with others.
struct Copied<'a>(&'a mut [f32]);

impl LogitRows for Copied<'_> {
    fn row(&mut self, _index: usize) -> &mut [f32] {
        self.0
    }
}

impl<B: Backend> Run<B> {
    /// Samples the rows of the step.
    pub(super) fn sample(&mut self) {
        let Step { scheduled, outcomes, drafted, failed, workspace, row, .. } = &mut self.step;
        outcomes.clear();
        drafted.clear();
        for scheduled in scheduled.iter() {
            let Some(live) = self.live.get_mut(&scheduled.request) else { continue };
            if let Err(failure) = live.begin(&self.settings.vocabulary) {
                failed.push((scheduled.request, failure));
                continue;
            }
            if self.settings.embeds {
                if !scheduled.rows.is_empty() {
                    live.keep_embedding(self.backend.row(scheduled.rows.start));
                }
                continue;
            }
            let vocabulary = &self.settings.vocabulary;
            let mut rows = Rows { backend: &mut self.backend, first: scheduled.rows.start };
            if let Err(error) = live.prompt_rows(scheduled, &mut rows, vocabulary, workspace) {
                failed.push((scheduled.request, error.into()));
                continue;
            }
            rows.first = scheduled.rows.end.saturating_sub(scheduled.drafts + 1);
            let shared = scheduled.choices.len() > 1;
            for choice in scheduled.choices.clone() {
                let advanced = if shared {
                    row.clear();
                    row.extend_from_slice(rows.row(0));
                    live.advance(choice, scheduled, &mut Copied(row), vocabulary, workspace)
                } else {
                    live.advance(choice, scheduled, &mut rows, vocabulary, workspace)
                };
                match advanced {
                    Ok(Some(advanced)) => {
                        self.status.drafted_tokens += advanced.drafted as u64;
                        self.status.accepted_tokens += advanced.outcome.accepted as u64;
                        self.status.answer_tokens += 1 + advanced.outcome.accepted as u64;
                        outcomes.push(advanced.outcome);
                        drafted.push(advanced.drafted);
                    }
                    Ok(None) => {}
                    Err(error) => {
                        failed.push((scheduled.request, error.into()));
                        break;
                    }
                }
            }
        }
    }
}
