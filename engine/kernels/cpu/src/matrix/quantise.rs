//! Rounding of weights to integers at load, in groups of [`GROUP`] inputs.

use super::form::{GROUP, Grouped};
use omni_checkpoint::GroupedRow;

/// Rounds a row: with offsets from the least to the greatest value of a group, else by the greatest magnitude.
pub(super) fn row(values: &[f32], form: Grouped, out: &mut GroupedRow) {
    out.quants.clear();
    out.scales.clear();
    out.offsets.clear();
    let most = ((1 << form.bits()) - 1) as f32;
    for group in values.chunks(GROUP) {
        let (scale, offset) = if form.has_offsets() {
            let (least, greatest) = bounds(group);
            ((greatest - least) / most, least)
        } else {
            let greatest = group.iter().fold(0.0, |greatest: f32, value| greatest.max(value.abs()));
            let scale = greatest / (most / 2.0).floor();
            (scale, -scale * f32::from(form.zero()))
        };
        let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
        let shift = if form.has_offsets() { -offset * inverse } else { f32::from(form.zero()) };
        // A cast of what is no number is 0, one of too much the most.
        out.quants.extend(group.iter().map(|value| (value * inverse + shift).round_ties_even().min(most) as u8));
        out.scales.push(scale);
        out.offsets.push(offset);
    }
}

/// Least and greatest value.
fn bounds(values: &[f32]) -> (f32, f32) {
    values
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(least, greatest), value| (least.min(*value), greatest.max(*value)))
}
