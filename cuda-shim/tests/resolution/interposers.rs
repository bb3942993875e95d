//! The shim beside other preloaded libraries: interposers of the same functions, and leak checkers.

use crate::programs::{Place, Shim, built};
use omni_cuda_card::{Card, Settings};
use std::collections::HashMap;
use std::process::{Command, Output};

/// The interposer calls the next function of each name, which is the hook. The hook has to go on to the runtime, not
/// back to the interposer.
#[test]
fn an_interposer_before_the_shim_sees_each_call_once() {
    let place = Place::new(None);
    let runtime = "driver/libcudart.so.12";
    place.compile("runtime.c", runtime, &["-shared", "-fPIC", "-DNAME=\"12\"", "-Wl,-soname,libcudart.so.12"]);
    place.compile("linked.c", "linked.so", &["-shared", "-fPIC", &place.text(runtime)]);
    place.compile("interposer.c", "interposer.so", &["-shared", "-fPIC", "-ldl"]);
    let library = place.text("linked.so");
    let printed = place.run_with(Shim::Active, "client", &["use", &library], &["interposer.so"], &HashMap::new());
    assert!(printed.contains("\n0 2 nothing\n"), "the limit holds: {printed}");
    assert!(printed.ends_with("seen: 2 0\n"), "{printed}");
}

/// Runs a program on a simulated card, with the shim before the driver or without it.
fn on_a_card(place: &Place, source: &str, options: &[&str], is_shimmed: bool, arguments: &[&str]) -> Output {
    if !place.path("dev").exists() {
        Card::create(&place.path("dev"), &[Settings::numbered(0)]).unwrap();
        omni_cuda_card::driver_dir(&built("libcuda_sim.so"), &place.path("sim")).unwrap();
    }
    place.compile(source, "program", &[options, &[&place.text("sim/libcuda.so.1")]].concat());
    let mut command = Command::new(place.path("program"));
    command.args(arguments).env("OMNI_CUDA_SIM", place.path("dev")).env("LD_LIBRARY_PATH", place.path("sim"));
    if is_shimmed {
        command.env("LD_PRELOAD", built("libomni_cuda.so")).env("OMNI_GPU_MODE", "unified");
        command.env("OMNI_GPU_LIMIT_BYTES", "1073741824").env("OMNI_GPU_DRIVER", place.path("sim"));
    }
    command.output().unwrap()
}

/// Memory that the shim keeps for the life of the process is no leak, in the process and in its child.
#[test]
fn a_leak_checker_finds_no_leak_of_the_shim() {
    let place = Place::new(None);
    let checked = |arguments: &[&str]| on_a_card(&place, "leaks.c", &["-fsanitize=leak"], true, arguments);
    let found = checked(&[]);
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    assert!(!checked(&["leak"]).status.success(), "the checker checks nothing here");
}

#[test]
fn calls_in_an_exit_handler_are_answered() {
    let place = Place::new(None);
    for is_shimmed in [false, true] {
        let ended = on_a_card(&place, "at_exit.c", &[], is_shimmed, &[]);
        let said = String::from_utf8_lossy(&ended.stdout);
        assert_eq!((ended.status.code(), said.as_ref()), (Some(0), "0 0 0\n"), "with the shim: {is_shimmed}");
    }
}
