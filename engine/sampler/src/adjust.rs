//! Changes of single logits: biases, penalties, exclusions.

use crate::counts::Counts;
use crate::parameters::{Parameters, Vocabulary};
use crate::row;
use crate::workspace::Workspace;

/// Changes that a request's parameters make in each row.
#[derive(Debug, Clone)]
pub(crate) struct Adjustments {
    biases: Box<[(u32, f32)]>,
    banned: Box<[u32]>,
    /// A bit for each id, set where it is allowed.
    allowed: Option<Box<[u32]>>,
    repetition: f32,
    frequency: f32,
    presence: f32,
    counts: Counts,
}

impl Adjustments {
    pub(crate) fn new(parameters: &Parameters, vocabulary: &Vocabulary, prompt: &[u32], generated: usize) -> Self {
        let penalised = parameters.repetition_penalty != 1.0
            || parameters.frequency_penalty != 0.0
            || parameters.presence_penalty != 0.0;
        let seen = if parameters.repetition_penalty == 1.0 { &[] } else { prompt };
        let allowed = parameters.allowed.as_ref().map(|allowed| {
            let mut bits = vec![0u32; vocabulary.size().div_ceil(32)];
            allowed.iter().for_each(|&id| bits[id as usize / 32] |= 1 << (id % 32));
            bits.into_boxed_slice()
        });
        Self {
            biases: parameters.logit_bias.as_slice().into(),
            banned: parameters.banned.as_slice().into(),
            allowed,
            repetition: parameters.repetition_penalty,
            frequency: parameters.frequency_penalty,
            presence: parameters.presence_penalty,
            counts: if penalised { Counts::new(seen, generated, vocabulary.size()) } else { Counts::default() },
        }
    }

    /// Counts an accepted token.
    pub(crate) fn accept(&mut self, token: u32) {
        if self.repetition != 1.0 || self.frequency != 0.0 || self.presence != 0.0 {
            self.counts.add(token);
        }
    }

    /// Changes a row. Logits that are changed by numbers are noted before.
    pub(crate) fn apply(&self, row: &mut [f32], workspace: &mut Workspace) {
        if let Some(allowed) = &self.allowed {
            row::mask(row, allowed);
        }
        self.banned.iter().for_each(|&id| row[id as usize] = f32::NEG_INFINITY);
        let mut change = |id: u32, to: &dyn Fn(f32) -> f32| {
            let logit = &mut row[id as usize];
            workspace.originals.push((id, *logit));
            // Sums and products stay finite, so that no NaN comes of them.
            *logit = if *logit == f32::NEG_INFINITY { *logit } else { to(*logit).clamp(f32::MIN, f32::MAX) };
        };
        for &(id, bias) in &self.biases {
            change(id, &|logit| logit + bias);
        }
        for (id, occurrences) in self.counts.iter() {
            let generated = occurrences.generated;
            let flat = if generated > 0 { self.presence } else { 0.0 } + self.frequency * generated as f32;
            let factor = self.repetition;
            change(id, &|logit| (if logit > 0.0 { logit / factor } else { logit * factor }) - flat);
        }
    }
}
