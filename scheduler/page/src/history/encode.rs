//! History as JSON: runs of equal values, so that a quiet hour is a few numbers. Pure.

use super::{History, RESOLUTIONS, Sample, Span};
use serde::Serialize;

/// History of one span.
#[derive(Debug, Serialize)]
pub(crate) struct Encoded<'a> {
    span: &'static str,
    /// Length of a step.
    seconds: u64,
    /// End of the last step, in milliseconds since the Unix epoch.
    end_ms: u64,
    /// Number of steps.
    steps: usize,
    /// Runs of steps that were observed (1) or not (0): value, length, value, length, …
    observed: Vec<u32>,
    lanes: Vec<EncodedLane<'a>>,
}

/// Lane with all steps of its span.
#[derive(Debug, Serialize)]
struct EncodedLane<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    card: Option<u32>,
    model: &'a str,
    /// Runs of the four values.
    values: [Vec<u32>; 4],
}

/// Step that has just ended.
#[derive(Debug, Serialize)]
pub(crate) struct Step<'a> {
    end_ms: u64,
    seconds: u64,
    lanes: Vec<(Option<u32>, &'a str, Sample)>,
}

impl History {
    /// History of a span. `at`, `unix_ms`: the present moment on both clocks.
    pub(crate) fn encoded(&self, span: Span, at: f64, unix_ms: u64) -> Encoded<'_> {
        let level = span.level();
        let (seconds, end_ms) = self.end(level, at, unix_ms);
        let observed = self.axes.get(level).map(|axis| axis.observed().map(u32::from).collect::<Vec<_>>());
        let observed = observed.unwrap_or_default();
        let steps = observed.len();
        let lanes = self.lanes.iter().map(|(key, series)| {
            let samples: Vec<Sample> = series.samples(level, steps).collect();
            let value = |at: usize| runs(samples.iter().map(|sample| sample.get(at).copied().unwrap_or(0)));
            EncodedLane { card: key.card, model: &key.model, values: [value(0), value(1), value(2), value(3)] }
        });
        Encoded { span: span.as_str(), seconds, end_ms, steps, observed: runs(observed), lanes: lanes.collect() }
    }

    /// Step of the hour that has ended last, without lanes that have nothing.
    pub(crate) fn last_step(&self, at: f64, unix_ms: u64) -> Step<'_> {
        let level = Span::Hour.level();
        let (seconds, end_ms) = self.end(level, at, unix_ms);
        let lanes = self.lanes.iter().map(|(key, series)| (key.card, key.model.as_str(), series.last(level)));
        Step { end_ms, seconds, lanes: lanes.filter(|(_, _, sample)| *sample != Sample::default()).collect() }
    }

    /// Length of a level's steps, and the end of the last one on the clock of the day.
    fn end(&self, level: usize, at: f64, unix_ms: u64) -> (u64, u64) {
        let Some((axis, resolution)) = self.axes.get(level).zip(RESOLUTIONS.get(level)) else { return (1, unix_ms) };
        let since = (at - axis.end(*resolution) as f64).max(0.0);
        (resolution.seconds, unix_ms.saturating_sub((since * 1000.0) as u64))
    }
}

/// Runs of equal values: value, length, value, length, …
fn runs(values: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut runs: Vec<u32> = Vec::new();
    for value in values {
        match runs.as_mut_slice() {
            [.., last, length] if *last == value => *length += 1,
            _ => runs.extend([value, 1]),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_run() {
        for (values, expected) in
            [(&[][..], &[][..]), (&[7], &[7, 1]), (&[7, 7, 0, 0, 0, 7], &[7, 2, 0, 3, 7, 1]), (&[1, 1, 1, 1], &[1, 4])]
        {
            assert_eq!(runs(values.iter().copied()), expected);
        }
    }
}
