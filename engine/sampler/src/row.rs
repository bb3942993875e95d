//! Passes over a whole row, as loops that compilers turn into vector instructions.

/// Logits that a pass treats together.
pub(crate) const BLOCK: usize = 64;
/// Independent partial results of a block.
const LANES: usize = 16;
/// Largest argument below which [`exp`] is 0: results would be below the smallest normal number.
const UNDERFLOW: f32 = -87.0;

/// Token from which on tokens are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Least {
    pub(crate) logit: f32,
    /// Last id that is kept with this logit.
    pub(crate) id: u32,
}

/// Replaces NaN by -∞ and +∞ by the largest number.
#[inline(always)]
pub(crate) fn clean(row: &mut [f32]) {
    let ordinary = |logits: &[f32]| logits.iter().map(|&logit| usize::from(logit < f32::INFINITY)).sum::<usize>();
    if row.chunks(BLOCK).all(|block| ordinary(block) == block.len()) {
        return;
    }
    for logit in row {
        *logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) };
    }
}

/// Writes the largest logit of each block and returns that of the row. There is no NaN in it.
#[inline(always)]
pub(crate) fn maxima(row: &[f32], maxima: &mut Vec<f32>) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    maxima.clear();
    maxima.extend(row.chunks(BLOCK).map(|block| {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let (whole, rest) = block.as_chunks::<LANES>();
        for part in whole {
            for (lane, &logit) in lanes.iter_mut().zip(part) {
                *lane = larger(logit, *lane);
            }
        }
        lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
    }));
    maxima.iter().fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

/// First id of the largest logit.
#[inline(always)]
pub(crate) fn first_largest(row: &[f32], maxima: &[f32], largest: f32) -> Option<usize> {
    let block = maxima.iter().position(|&maximum| maximum == largest)?;
    let within = row.chunks(BLOCK).nth(block)?;
    Some(block * BLOCK + within.iter().position(|&logit| logit == largest)?)
}

/// Writes the weights `exp((logit - largest) * scale)` of the tokens from `least` on, 0 of the others in the same
/// block, and the sum of each block. Weights of blocks without a sum are not written. Returns the sum of all.
#[inline(always)]
pub(crate) fn weights(
    row: &[f32],
    maxima: &[f32],
    largest: f32,
    scale: f32,
    least: Least,
    weights: &mut [f32],
    sums: &mut Vec<f32>,
) -> f64 {
    sums.clear();
    let mut total = 0.0;
    let blocks = row.chunks(BLOCK).zip(weights.chunks_mut(BLOCK)).zip(maxima).enumerate();
    for (block, ((logits, weights), &maximum)) in blocks {
        let mut of_block = 0.0;
        if maximum >= least.logit {
            for (weight, &logit) in weights.iter_mut().zip(logits) {
                *weight = exp((logit - largest) * scale);
            }
            keep(logits, block, least, weights);
            of_block = sum(weights);
        }
        sums.push(of_block);
        total += f64::from(of_block);
    }
    total
}

/// Sets weights before `least` to 0, and the sums of the blocks anew. Returns the sum of all.
#[inline(always)]
pub(crate) fn restrict(row: &[f32], maxima: &[f32], least: Least, weights: &mut [f32], sums: &mut [f32]) -> f64 {
    let mut total = 0.0;
    let blocks = row.chunks(BLOCK).zip(weights.chunks_mut(BLOCK)).zip(maxima).zip(sums.iter_mut()).enumerate();
    for (block, (((logits, weights), &maximum), of_block)) in blocks {
        if *of_block > 0.0 {
            *of_block = 0.0;
            if maximum >= least.logit {
                keep(logits, block, least, weights);
                *of_block = sum(weights);
            }
            total += f64::from(*of_block);
        }
    }
    total
}

/// Sets the weights of tokens before `least` to 0.
#[inline(always)]
fn keep(logits: &[f32], block: usize, least: Least, weights: &mut [f32]) {
    if least.logit == f32::MIN && least.id == u32::MAX {
        // Smaller ones are -∞, whose weight is 0.
        return;
    }
    // Number of the block's ids that are kept with the least logit.
    let equal = (least.id as usize + 1).saturating_sub(block * BLOCK).min(logits.len());
    let (first, second) = weights.split_at_mut(equal);
    for (weight, &logit) in first.iter_mut().zip(logits) {
        *weight = if logit >= least.logit { *weight } else { 0.0 };
    }
    for (weight, &logit) in second.iter_mut().zip(&logits[equal..]) {
        *weight = if logit > least.logit { *weight } else { 0.0 };
    }
}

/// Sum of `exp(logit - largest)`.
#[inline(always)]
pub(crate) fn exponential_sum(row: &[f32], largest: f32) -> f64 {
    let mut weights = [0.0f32; BLOCK];
    let mut total = 0.0;
    for logits in row.chunks(BLOCK) {
        for (weight, &logit) in weights.iter_mut().zip(logits) {
            *weight = exp(logit - largest);
        }
        total += f64::from(sum(&weights[..logits.len()]));
    }
    total
}

#[inline(always)]
fn sum(values: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for part in whole {
        for (lane, &value) in lanes.iter_mut().zip(part) {
            *lane += value;
        }
    }
    lanes.iter().chain(rest).sum()
}

/// Sets logits to -∞ whose bit is not set; ids beyond the mask are not allowed.
pub(crate) fn mask(row: &mut [f32], allowed: &[u32]) {
    let mut words = allowed.iter();
    for logits in row.chunks_mut(32) {
        match words.next() {
            Some(&u32::MAX) => {}
            None | Some(0) => logits.fill(f32::NEG_INFINITY),
            Some(&word) => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
    }
}

/// Exponential function of arguments up to 0, within 2e-7 relative; 0 below -87. Its operations are those that
/// every level of vector instructions has, so results are the same on all machines.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: the sum has its integer part in its lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let rest = (x - power * (355.0 / 512.0)) - power * -2.121_944_4e-4;
    let mut polynomial = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        polynomial = polynomial * rest + coefficient;
    }
    let fraction = polynomial * rest * rest + rest + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    if x >= UNDERFLOW { fraction * f32::from_bits(exponent) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_parts_in_ten_million() {
        for step in 0..87_000 {
            let x = -step as f32 / 1000.0;
            let (ours, exact) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((ours / exact - 1.0).abs() < 2e-7, "{x}: {ours} {exact}");
        }
        assert_eq!(exp(0.0), 1.0);
        for x in [-87.1, -1e30, f32::MIN, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(exp(x), 0.0, "{x}");
        }
    }

    #[test]
    fn maxima_and_sums_of_blocks_agree_with_plain_loops() {
        let mut random = fastrand::Rng::with_seed(1);
        for size in [1, 15, 16, 63, 64, 65, 200, 1031] {
            let row: Vec<f32> = (0..size).map(|_| random.f32() * 20.0 - 10.0).collect();
            let (mut maxima_of, mut out, mut sums) = (Vec::new(), vec![0.0; size], Vec::new());
            let largest = maxima(&row, &mut maxima_of);
            assert_eq!(largest, row.iter().copied().fold(f32::MIN, f32::max));
            assert_eq!(first_largest(&row, &maxima_of, largest), row.iter().position(|&logit| logit == largest));
            let all = Least { logit: f32::MIN, id: u32::MAX };
            let total = weights(&row, &maxima_of, largest, 0.5, all, &mut out, &mut sums);
            let exact = |kept: &dyn Fn(usize) -> bool| {
                let weights = (0..size).filter(|&id| kept(id)).map(|id| (f64::from(row[id] - largest) * 0.5).exp());
                weights.sum::<f64>()
            };
            assert!((total / exact(&|_| true) - 1.0).abs() < 1e-6);
            let middle = Least { logit: row[size / 2], id: (size / 2) as u32 };
            let kept = exact(&|id| row[id] >= middle.logit);
            let restricted = restrict(&row, &maxima_of, middle, &mut out, &mut sums);
            assert!((restricted / kept - 1.0).abs() < 1e-6);
            let at_once = weights(&row, &maxima_of, largest, 0.5, middle, &mut out, &mut sums);
            assert_eq!(at_once.to_bits(), restricted.to_bits());
            let exact: f64 = row.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
            assert!((exponential_sum(&row, largest) / exact - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn masks_of_any_length_leave_allowed_logits_only() {
        let mut row: Vec<f32> = (0..100).map(|id| id as f32).collect();
        mask(&mut row, &[u32::MAX, 0, 0b101]);
        let left: Vec<usize> = (0..100).filter(|&id| row[id] > f32::NEG_INFINITY).collect();
        assert_eq!(left, (0..32).chain([64, 66]).collect::<Vec<_>>());
    }
}
