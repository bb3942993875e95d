//! Runtimes that bypass the driver's hooks: allocations of programs that are linked to them count all the same, and of
//! two runtimes each caller gets its own.

use crate::programs::{Place, Shim};

/// Two libraries, each linked to a runtime of its own that calls no driver.
fn two_runtimes() -> (Place, [String; 2]) {
    let place = Place::new(None);
    let libraries = ["12", "13"].map(|version| {
        let (runtime, library) = (format!("driver/libcudart.so.{version}"), format!("linked{version}.so"));
        let (name, soname) = (format!("-DNAME=\"{version}\""), format!("-Wl,-soname,libcudart.so.{version}"));
        place.compile("runtime.c", &runtime, &["-shared", "-fPIC", &name, &soname]);
        place.compile("linked.c", &library, &["-shared", "-fPIC", &place.text(&runtime)]);
        place.text(&library)
    });
    (place, libraries)
}

#[test]
fn allocations_of_an_escaped_runtime_are_limited_and_each_caller_keeps_its_runtime() {
    let (place, [first, second]) = two_runtimes();
    let used = |version| {
        format!(
            "at first: 1024 of 1024 MiB free, the card of {version} has 1024\n0 2 nothing\n\
             with the first: 256 of 1024 MiB free, the card of {version} has 1024\n0\n\
             after all: 1024 of 1024 MiB free, the card of {version} has 1024\n"
        )
    };
    assert_eq!(place.run(Shim::Active, "client", &["use", &first, &second]), used("12") + &used("13"));
    assert_eq!(place.run(Shim::Active, "client", &["use", &second, &first]), used("13") + &used("12"));
}

#[test]
fn an_inactive_shim_leaves_every_runtime_alone() {
    let (place, [first, second]) = two_runtimes();
    let alone = place.run(Shim::Absent, "client", &["use", &first, &second]);
    assert!(alone.contains("0 0 an address") && alone.contains("81920 of 81920 MiB free"), "{alone}");
    assert_eq!(place.run(Shim::Inactive, "client", &["use", &first, &second]), alone);
}
