//! The escape suite: attempts of foreign code, and of its authors, to get out of the sandbox.
//!
//! An attempt is a probe, a Python function in `probes/`. All of them are tried wherever a node runs foreign code: in
//! models of every kind and in a package's build step ([`places`]), a test each. There each must be refused. The same
//! functions are tried once more without any protection ([`control`]): as root, without a sandbox, in namespaces and a
//! control group made for it, against a neighbour in sight. There each must succeed.
//!
//! The control run proves that a probe works: its refusal is the sandbox's doing and no mistake of the probe. It does not
//! prove which wall refused it; most probes meet several. The product has no switch for this. Attacks that are not a
//! single call have tests of their own here, with controls of their own: links that a model leaves for its next start
//! ([`links`]), descriptors that it sends ([`wires`]), output to its log ([`logs`]), and requirements and packages of an
//! author ([`packages`]). Directories of models are in `bad_models` and in `worker/snapshot/tests`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod control;
mod links;
mod logs;
mod outcomes;
mod packages;
mod places;
mod taken_over;
mod wires;

use outcomes::{assert_all_refused, assert_all_succeeded, assert_all_tried};
use places::Places;

/// The models of a test may together use more than a small machine has: none of them comes near its limit.
const ROOMY: &str = "[capacity]\nmemory = \"64GiB\"\n";

/// Tries everything in one place.
fn try_in(place: &'static str) {
    let places = Places::start(place);
    let found = places.try_all();
    assert_all_tried(&found);
    assert_all_refused(place, &found);
    places.assert_untouched();
}

#[test]
fn every_probe_succeeds_without_a_sandbox() {
    let places = Places::start(places::BUILD);
    let found = control::run(&places.interpreter());
    assert_all_tried(&found);
    assert_all_succeeded(&found);
    places.assert_untouched();
}

#[test]
fn every_probe_is_refused_in_a_model() {
    try_in("alone");
}

#[test]
fn every_probe_is_refused_in_an_instance_of_a_zygote() {
    try_in("forked");
}

#[test]
fn every_probe_is_refused_in_a_model_with_the_hosts_network() {
    try_in("networked");
}

#[test]
fn every_probe_is_refused_in_a_build_step() {
    try_in(places::BUILD);
}
