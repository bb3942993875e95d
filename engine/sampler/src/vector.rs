//! Passes over rows in code for AVX2, where the processor has it; else for what every processor has. The order of all
//! operations is the same, and so are the results, bit for bit.
#![allow(unsafe_code, reason = "calls of functions for AVX2, after a look at the processor")]

use crate::logprob::{self, Normaliser};
use crate::row;
use crate::selection::{self, Filters};
use crate::workspace::Workspace;

macro_rules! for_this_processor {
    ($(#[$doc:meta])* $name:ident = $pass:path, ($($argument:ident: $type:ty),*) -> $result:ty) => {
        $(#[$doc])*
        pub(crate) fn $name($($argument: $type),*) -> $result {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn wide($($argument: $type),*) -> $result {
                    $pass($($argument),*)
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has AVX2.
                    return unsafe { wide($($argument),*) };
                }
            }
            $pass($($argument),*)
        }
    };
}

for_this_processor! {
    /// See [`row::clean`].
    clean = row::clean, (row: &mut [f32]) -> ()
}

for_this_processor! {
    /// See [`selection::choose`].
    choose = selection::choose,
    (row: &[f32], filters: Filters, uniform: f64, workspace: &mut Workspace) -> Option<u32>
}

for_this_processor! {
    /// See [`logprob::normalise`].
    normalise = logprob::normalise, (row: &[f32], count: usize, workspace: &mut Workspace) -> Normaliser
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::{Parameters, Vocabulary};

    #[test]
    fn results_are_those_of_the_portable_code_bit_for_bit() {
        let mut random = fastrand::Rng::with_seed(5);
        let vocabulary = Vocabulary::new(1000, &[]).unwrap();
        let (mut wide, mut portable) = (Workspace::new(&vocabulary), Workspace::new(&vocabulary));
        for round in 0..2000 {
            let row: Vec<f32> = (0..random.usize(1..1000)).map(|_| random.f32() * 20.0).collect();
            let top_p = [1.0, 0.7][round % 2];
            let filters =
                Filters::new(&Parameters { top_p, min_p: [0.0, 0.01][round / 2 % 2], ..Parameters::default() });
            let uniform = random.f64();
            assert_eq!(
                choose(&row, filters, uniform, &mut wide),
                selection::choose(&row, filters, uniform, &mut portable)
            );
            assert_eq!(wide.sums, portable.sums);
            let (one, other) = (normalise(&row, 5, &mut wide), logprob::normalise(&row, 5, &mut portable));
            assert_eq!(one.logprob(0.0).to_bits(), other.logprob(0.0).to_bits());
            assert_eq!(wide.alternatives, portable.alternatives);
        }
    }
}
