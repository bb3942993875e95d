//! Weights that are no numbers.

use super::model::{Model, all};
use super::runner::{Part, Runner, blocks, combinations, tokens};
use omni_kernels::BlockId;

#[test]
fn weights_that_are_no_numbers_do_no_harm_beyond_their_model() {
    let mut random = fastrand::Rng::with_seed(1);
    for (name, shape) in all() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -f32::MAX] {
            let mut share = fastrand::Rng::with_seed(2);
            let model = Model::with(name, &shape, 3, |value| if share.u8(..) < 2 { bad } else { value });
            for options in combinations() {
                let mut runner = Runner::new(&model, options);
                let tokens = tokens(&mut random, 70);
                runner.whole(&tokens);
            }
        }
    }
}

#[test]
fn a_cache_of_no_numbers_is_not_read_beyond_its_sequence() {
    let mut random = fastrand::Rng::with_seed(3);
    for (name, shape) in all() {
        let model = Model::new(name, &shape, 4);
        let tokens = tokens(&mut random, 37);
        for options in combinations() {
            let mut runner = Runner::new(&model, options);
            let expected = runner.whole(&tokens);
            let bytes = runner.export(&[BlockId(0)])[0].len();
            for block in 0..128 {
                omni_kernels::Backend::import(&mut runner.backend, BlockId(block), &vec![0xff; bytes]);
            }
            assert!(runner.whole(&tokens) == expected, "{name}, {options:?}");
            if shape.all {
                continue;
            }
            let table = blocks(0, 37);
            for (at, token) in tokens.iter().enumerate() {
                let part = Part { tokens: &[*token], start: at, blocks: &table[..at / 16 + 1], logits: 1 };
                assert!(runner.step(&[part])[0][0] == expected[at], "{name}, {options:?}, position {at}");
            }
        }
    }
}
