//! The node's page in a real browser, with thirteen models at four times the card, which are asked all the while.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::browser::run_page_tests;
use omni_tests::gpu::{ask, card, model};
use omni_tests::{Node, SetOnDrop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const MODELS: usize = 13;

#[test]
fn the_page_with_thirteen_models_at_four_times_the_card() {
    let config = "memory-budget = \"52MiB\"\novercommit = 4.0\nquantum = \"50ms\"";
    let node = Node::builder().gpus(&[card(512)], config).start();
    let name = |number: usize| format!("m{number}");
    (0..MODELS).for_each(|number| model(&name(number), 12).limit(16).publish(&node));
    (0..MODELS).for_each(|number| drop(ask(&node, &name(number))));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stopping = SetOnDrop(&stop);
        scope.spawn(|| {
            for number in (0..MODELS).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                ask(&node, &name(number));
            }
        });
        run_page_tests(&node, "cards.test.mjs");
    });
    node.stop();
}
