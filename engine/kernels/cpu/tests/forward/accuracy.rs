//! Results against the plain computation.

use super::model::{Model, all};
use super::reference;
use super::runner::{Runner, options, tokens};
use omni_kernels_cpu::{CacheFormat, Level, Weights};

/// Greatest difference, relative to the greatest magnitude.
fn error(found: &[u32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let greatest = expected.iter().fold(0.0, |greatest: f64, value| greatest.max(value.abs()));
    let difference = |(found, expected): (&u32, &f64)| (f64::from(f32::from_bits(*found)) - expected).abs();
    found.iter().zip(expected).map(difference).fold(0.0, f64::max) / greatest
}

#[test]
fn results_are_those_of_the_plain_computation() {
    let mut random = fastrand::Rng::with_seed(7);
    for (name, shape) in all() {
        let model = Model::new(name, &shape, 1);
        let tokens = tokens(&mut random, 90);
        let expected = reference::compute(&model, &tokens);
        for level in Level::all_supported() {
            let mut runner = Runner::new(&model, options(level, Weights::F32, CacheFormat::F32, 2));
            let found = runner.whole(&tokens);
            let errors = found.iter().zip(&expected).map(|(found, expected)| error(found, expected));
            let worst = errors.fold(0.0, f64::max);
            assert!(worst < 1e-5, "{name}, {level}: {worst:e}");
        }
    }
}

#[test]
fn a_long_sequence_is_that_of_the_plain_computation() {
    let mut random = fastrand::Rng::with_seed(8);
    for (name, shape) in all() {
        let model = Model::new(name, &shape, 2);
        let tokens = tokens(&mut random, 600);
        let expected = reference::compute(&model, &tokens);
        let mut runner = Runner::new(&model, options(Level::detect(), Weights::F32, CacheFormat::F32, 2));
        let found = runner.whole(&tokens);
        let errors = found.iter().zip(&expected).map(|(found, expected)| error(found, expected));
        let worst = errors.fold(0.0, f64::max);
        assert!(worst < 2e-5, "{name}: {worst:e}");
    }
}
