//! Look-ups of functions of the driver find the hook where the driver has one, and otherwise get exactly the driver's
//! answer: by handle, by `RTLD_DEFAULT` and `RTLD_NEXT`, by `cuGetProcAddress` in both forms.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod driver;
mod escaped;
mod interposers;
mod other_libcs;
mod programs;
mod runtimes;
mod simulated;

use omni_cuda_entries::{ENTRIES, Entry, Role};
use programs::{Place, Shim, built};
use std::collections::{BTreeSet, HashMap};
use std::process::Command;

/// Library in a symbol's line when the hook, or the driver's own function, is found.
const OURS: &str = "libomni_cuda.so";
const DRIVERS: &str = "libcuda.so.1";

/// Version newer than every entry.
const NEWEST: u32 = 13050;

/// Exports of the shim beside entries of the driver.
const OTHERS: &str = "dlsym dlvsym nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2
    cudaMalloc cudaMallocManaged cudaMallocPitch cudaMalloc3D cudaMallocAsync cudaMallocAsync_ptsz
    cudaMallocFromPoolAsync cudaMallocFromPoolAsync_ptsz cudaFree cudaFreeAsync cudaFreeAsync_ptsz
    cudaMemGetInfo cudaGetDeviceProperties cudaGetDeviceProperties_v2";

fn is_taken_over(entry: &Entry) -> bool {
    match entry.role {
        Role::Allocates | Role::Frees | Role::Reports | Role::Resolves | Role::Watched => true,
        Role::Other => false,
    }
}

fn symbols() -> Vec<&'static str> {
    ENTRIES.iter().map(|entry| entry.symbol).collect()
}

/// Lines that belong to each name: `by handle`, `by version`, `by any`, `by next`.
fn by_name(printed: &str) -> Vec<(&str, Vec<&str>)> {
    let mut names: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in printed.lines() {
        match (line.strip_prefix("  "), names.last_mut()) {
            (Some(found), Some((_, lines))) => lines.push(found),
            _ => names.push((line, Vec::new())),
        }
    }
    names
}

#[test]
fn every_way_to_a_hooked_entry_leads_to_the_hook() {
    let place = Place::new(Some(NEWEST));
    let printed = place.run(Shim::Active, "client", &[&["lookup"], symbols().as_slice()].concat());
    let names = by_name(&printed);
    assert_eq!(names.len(), ENTRIES.len());
    for ((name, lines), entry) in names.into_iter().zip(ENTRIES) {
        assert_eq!((name, lines.len()), (entry.symbol, 4));
        for (how, line) in ["handle", "version", "default", "next"].iter().zip(lines) {
            let expected = match (is_taken_over(entry), *how) {
                (true, _) => format!("{how}: {} in {OURS}, no error", entry.symbol),
                (false, "handle" | "version") => format!("{how}: {} in {DRIVERS}, no error", entry.symbol),
                // The driver is opened for one library only: the loader alone would not find it for others.
                (false, _) => format!("{how}: - in nothing, an error"),
            };
            assert_eq!(line, expected, "{}", entry.symbol);
        }
    }
}

#[test]
fn entries_that_an_old_driver_lacks_stay_absent() {
    let place = Place::new(Some(12000));
    let printed = place.run(Shim::Active, "client", &[&["lookup"], symbols().as_slice()].concat());
    let mut lacking = 0;
    for ((_, lines), entry) in by_name(&printed).into_iter().zip(ENTRIES) {
        if entry.version > 12000 {
            lacking += 1;
            assert!(lines.iter().all(|line| line.ends_with("- in nothing, an error")), "{}: {lines:?}", entry.symbol);
        } else if is_taken_over(entry) {
            assert!(
                lines.iter().all(|line| line.ends_with("in libomni_cuda.so, no error")),
                "{}: {lines:?}",
                entry.symbol
            );
        }
    }
    assert!(lacking > 50, "{lacking} entries came after 12.0");
}

#[test]
fn without_a_driver_there_is_nothing() {
    let place = Place::new(None);
    for shim in [Shim::Active, Shim::Inactive] {
        let printed = place.run(shim, "client", &[&["lookup"], symbols().as_slice()].concat());
        for (name, lines) in by_name(&printed) {
            let expected = ["default: - in nothing, an error", "next: - in nothing, an error"];
            assert_eq!(lines, expected, "{name}");
        }
    }
}

#[test]
fn an_inactive_shim_changes_no_pointer() {
    let place = Place::new(Some(NEWEST));
    let arguments = [&["lookup"], symbols().as_slice()].concat();
    let printed = place.run(Shim::Inactive, "client", &arguments);
    for ((_, lines), entry) in by_name(&printed).into_iter().zip(ENTRIES) {
        assert!(lines.iter().all(|line| !line.contains(OURS)), "{}: {lines:?}", entry.symbol);
        assert!(lines[0].ends_with("in libcuda.so.1, no error"), "{}: {lines:?}", entry.symbol);
    }
    let requests = requests();
    let answers = |shim| place.run(shim, "client", &requests);
    assert_eq!(answers(Shim::Inactive), answers(Shim::Absent));
}

/// Requests for every entry as callers make them, and as none should: too early, with other flags, with its symbol.
fn requests() -> Vec<String> {
    let mut requests: BTreeSet<String> = BTreeSet::new();
    for entry in ENTRIES {
        let (base, symbol, version) = (entry.base, entry.symbol, entry.version);
        for flags in [0, 1, 2, 3, 4] {
            requests.insert(format!("{base}:{version}:{flags}"));
            requests.insert(format!("{base}:{}:{flags}", version - 1));
            requests.insert(format!("{base}:99000:{flags}"));
            requests.insert(format!("{symbol}:{version}:{flags}"));
        }
        requests.insert(format!("{base}:0:0"));
        requests.insert(format!("{base}:-1:2"));
    }
    let unknown = ["cuMemAllocate:12000:0", "cu:12000:0", "malloc:12000:2", "cuMemAlloc_v9:12000:0"];
    std::iter::once("proc".to_owned()).chain(requests).chain(unknown.map(str::to_owned)).collect()
}

#[test]
fn cu_get_proc_address_answers_as_the_driver_with_hooks_in_place_of_entries() {
    let taken_over = |symbol: &str| omni_cuda_entries::find(symbol).is_some_and(is_taken_over);
    for version in [NEWEST, 12090, 12000] {
        let place = Place::new(Some(version));
        let answers = |shim| place.run(shim, "client", &requests());
        let (alone, with_us) = (answers(Shim::Absent), answers(Shim::Active));
        let mut ours = 0;
        for (alone, with_us) in alone.lines().zip(with_us.lines()) {
            let symbol = alone.split(' ').nth_back(2).unwrap();
            let expected = if alone.ends_with(DRIVERS) && taken_over(symbol) {
                ours += 1;
                alone.replace(DRIVERS, OURS)
            } else {
                alone.to_owned()
            };
            assert_eq!(with_us, expected);
        }
        assert_eq!(alone.lines().count(), with_us.lines().count());
        assert!(ours > 300, "{ours} answers of {version} are ours");
    }
}

#[test]
fn null_arguments_crash_nothing_and_get_the_drivers_answer() {
    let place = Place::new(Some(NEWEST));
    assert_eq!(place.run(Shim::Absent, "client", &["null"]), "1 1 1 1 1 0 libcuda.so.1\n");
    assert_eq!(place.run(Shim::Active, "client", &["null"]), "1 1 1 1 1 0 libomni_cuda.so\n");
}

#[test]
fn rtld_next_starts_after_the_caller() {
    let place = Place::new(Some(NEWEST));
    std::fs::write(place.path("marker.versions"), "ANY { marker*; };").unwrap();
    let versions = format!("-Wl,-Bsymbolic,--version-script={}", place.text("marker.versions"));
    for how in ["-DBY_NAME", "-DBY_VERSION"] {
        for who in ["first", "second"] {
            let defined = format!("-DWHO=\"{who}\"");
            place.compile("marker.c", &format!("{who}.so"), &["-shared", "-fPIC", &versions, &defined, how]);
        }
        let found = |preloaded: &[&str]| {
            let first = place.text("first.so");
            place.run_with(Shim::Active, "client", &["next", &first], preloaded, &HashMap::new())
        };
        assert_eq!(found(&["first.so", "second.so"]), "second\n", "{how}");
        assert_eq!(found(&["second.so", "first.so"]), "nothing\n", "{how}");
    }
}

#[test]
fn a_namespace_of_its_own_gets_a_shim_of_its_own_through_the_proxy() {
    let place = Place::new(Some(NEWEST)).with_proxy();
    let printed = place.run(Shim::Active, "client", &["namespace"]);
    assert_eq!(printed, "cuMemAlloc_v2 in libomni_cuda.so, two copies\n");
}

#[test]
fn the_shim_exports_its_hooks_and_nothing_else() {
    let output =
        Command::new("nm").args(["-D", "--defined-only", "-j"]).arg(built("libomni_cuda.so")).output().unwrap();
    let exported: BTreeSet<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    let taken_over = ENTRIES.iter().filter(|entry| is_taken_over(entry)).map(|entry| entry.symbol.to_owned());
    let others = OTHERS.split_whitespace().map(str::to_owned);
    let expected: BTreeSet<String> = taken_over.chain(others).collect();
    assert_eq!(exported.symmetric_difference(&expected).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn the_proxy_has_a_soname_and_two_needed_libraries() {
    let read = |what: &str, file: &str| {
        let output = Command::new("readelf").args([what, "-W"]).arg(built(file)).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let dynamic = read("-d", "libomni_cuda_proxy.so");
    let quoted = |line: &str| line.split(['[', ']']).nth(1).map(str::to_owned);
    let tagged = |tag: &str| dynamic.lines().filter(|line| line.contains(tag)).filter_map(quoted).collect::<Vec<_>>();
    assert_eq!(tagged("(SONAME)"), ["libcuda.so.1"]);
    let needed: Vec<_> = tagged("(NEEDED)").into_iter().filter(|name| name.contains("cuda")).collect();
    assert_eq!(needed, ["/gpu/libomni_cuda.so", "/gpu/driver/libcuda.so.1"]);
    let defined =
        Command::new("nm").args(["-D", "--defined-only"]).arg(built("libomni_cuda_proxy.so")).output().unwrap();
    assert_eq!(String::from_utf8(defined.stdout).unwrap(), "");
    assert!(read("-d", "libomni_cuda.so").contains("soname: [libomni_cuda.so]"));
}
