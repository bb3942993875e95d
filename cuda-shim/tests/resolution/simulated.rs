//! The simulated driver, which has entries that work and cards: the runtimes' requests, and NVML.

use crate::programs::{Place, Shim, built};
use crate::runtimes::{CUDART_12, CUDART_13, Runtime, compared};
use omni_cuda_card::{Card, DIRECTORY, Settings, driver_dir};
use std::collections::HashMap;

/// Directory with a simulated card and driver.
fn simulated(driver: u32) -> (Place, HashMap<&'static str, String>) {
    let place = Place::new(None);
    let settings = Settings { driver, ..Settings::numbered(0) };
    Card::create(&place.path("dev"), &[settings]).unwrap();
    driver_dir(&built("libcuda_sim.so"), &place.path("driver")).unwrap();
    let environment = HashMap::from([(DIRECTORY, place.text("dev"))]);
    (place, environment)
}

#[test]
fn the_runtimes_get_the_simulated_drivers_answers_with_hooked_allocation() {
    for (runtime, requests) in [(CUDART_12, (419, 69)), (CUDART_13, (481, 80))] {
        let (place, environment) = simulated(13050);
        assert_eq!(compared(&place, Runtime::Dynamic(runtime), &environment), requests);
    }
}

#[test]
fn nvml_shows_the_share() {
    let (place, environment) = simulated(12090);
    place.compile("share.c", "share", &["-ldl"]);
    let double = built("libcudart_double.so");
    let printed = place.run_with(Shim::Active, "share", &[&double], &[], &environment);
    let errors = "without arguments: errors";
    let expected = format!("0 1024 1024 0, 0 1024 1024 0\n{errors}\n0\n0 1024 768 256, 0 1024 768 256\n{errors}\n");
    assert_eq!(printed, expected);
    let alone = place.run_with(Shim::Absent, "share", &[&double], &[], &environment);
    assert_eq!(place.run_with(Shim::Inactive, "share", &[&double], &[], &environment), alone);
    assert!(!alone.contains(" 1024 "), "the card is larger than the share: {alone}");
}
