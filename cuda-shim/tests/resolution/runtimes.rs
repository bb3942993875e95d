//! NVIDIA's own runtimes, of CUDA 12 and 13, dynamic and static: their first requests to the driver, and the answers
//! with the shim in between. They go no further here: their next request is for an undocumented table, which the
//! recording driver does not have.

use crate::programs::{Place, Shim, cuda};
use crate::{DRIVERS, NEWEST, OURS, is_taken_over};
use std::collections::{BTreeSet, HashMap};
use std::fs;

/// Request, as the observer writes it.
struct Request {
    /// Everything but the library of the answer.
    what: String,
    symbol: String,
    library: String,
}

/// Way in which a runtime comes into a process.
#[derive(Clone, Copy)]
pub(crate) enum Runtime {
    Dynamic(&'static str),
    Forked(&'static str),
    Static,
}

pub(crate) const CUDART_12: &str = "cuda_runtime/lib/libcudart.so.12";
pub(crate) const CUDART_13: &str = "cu13/lib/libcudart.so.13";

fn observed(place: &Place, shim: Shim, runtime: Runtime, environment: &HashMap<&str, String>) -> Vec<Request> {
    let log = place.path("observed");
    fs::write(&log, "").unwrap();
    let mut environment = environment.clone();
    environment.insert("OBSERVED", place.text("observed"));
    let client = |arguments: &[&str]| place.run_with(shim, "client", arguments, &["observer.so"], &environment);
    match runtime {
        Runtime::Dynamic(library) => client(&["runtime", &cuda(library).to_string_lossy()]),
        Runtime::Forked(library) => client(&["forked", &cuda(library).to_string_lossy()]),
        Runtime::Static => place.run_with::<&str>(shim, "static", &[], &["observer.so"], &environment),
    };
    let request = |line: &str| {
        let (what, library) = line.rsplit_once(' ').unwrap();
        let symbol = what.rsplit_once(' ').unwrap().1;
        Request { what: what.to_owned(), symbol: symbol.to_owned(), library: library.to_owned() }
    };
    fs::read_to_string(&log).unwrap().lines().map(request).collect()
}

/// Names that every runtime asks for: allocation, and reports of a card's memory.
const FAMILY: &[&str] = &[
    "cuArray3DCreate_v2",
    "cuArrayCreate_v2",
    "cuDeviceTotalMem_v2",
    "cuGraphAddMemAllocNode",
    "cuImportExternalMemory",
    "cuIpcOpenMemHandle_v2",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuMemAlloc_v2",
    "cuMemFreeAsync",
    "cuMemFreeAsync_ptsz",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemPoolCreate",
    "cuMipmappedArrayCreate",
];

/// Runs a runtime with and without the shim, compares every answer, and counts requests, and those with flag 2.
pub(crate) fn compared(place: &Place, runtime: Runtime, environment: &HashMap<&str, String>) -> (usize, usize) {
    place.compile("observer.c", "observer.so", &["-shared", "-fPIC", "-ldl"]);
    if let Runtime::Static = runtime {
        let library = cuda("cuda_runtime/lib/libcudart_static.a");
        place.compile("static_client.c", "static", &[&library.to_string_lossy(), "-ldl", "-lpthread", "-lrt"]);
    }
    let [alone, with_us] = [Shim::Absent, Shim::Active].map(|shim| observed(place, shim, runtime, environment));
    assert_eq!(alone.len(), with_us.len());
    let mut ours = BTreeSet::new();
    for (alone, with_us) in alone.iter().zip(&with_us) {
        assert_eq!(alone.what, with_us.what);
        let stands = omni_cuda_entries::find(&alone.symbol).is_some_and(is_taken_over);
        assert_eq!(
            (stands, alone.library == DRIVERS),
            (with_us.library == OURS, alone.symbol != "-"),
            "{}",
            alone.what
        );
        ours.extend(stands.then_some(with_us.symbol.as_str()));
    }
    for symbol in FAMILY {
        assert!(ours.contains(symbol), "{symbol} was asked for, and is the driver's");
    }
    let per_thread = alone.iter().filter(|request| request.what.split(' ').nth(2) == Some("2")).count();
    (alone.len(), per_thread)
}

/// [`compared`] on the recording driver.
fn recorded(driver: u32, runtime: Runtime) -> (usize, usize) {
    compared(&Place::new(Some(driver)), runtime, &HashMap::new())
}

#[test]
fn the_runtime_of_12_gets_the_drivers_answers_with_hooked_allocation() {
    assert_eq!(recorded(NEWEST, Runtime::Dynamic(CUDART_12)), (419, 69));
}

#[test]
fn a_static_runtime_gets_the_same_answers() {
    assert_eq!(recorded(NEWEST, Runtime::Static), (419, 69));
}

#[test]
fn the_runtime_of_13_gets_the_drivers_answers_with_hooked_allocation() {
    assert_eq!(recorded(NEWEST, Runtime::Dynamic(CUDART_13)), (481, 80));
}

#[test]
fn a_runtime_on_an_old_driver_gets_the_drivers_errors() {
    assert_eq!(recorded(12000, Runtime::Dynamic(CUDART_12)), (419, 69));
}

#[test]
fn a_runtime_that_starts_after_a_fork_gets_the_same_answers() {
    assert_eq!(recorded(NEWEST, Runtime::Forked(CUDART_12)), (419, 69));
}

/// Opened with `RTLD_DEEPBIND` a runtime uses libc's own `dlsym`: the library that it opens has to lead to the shim.
#[test]
fn a_runtime_opened_with_deepbind_finds_the_shim_through_the_proxy() {
    let place = Place::new(Some(NEWEST)).with_proxy();
    for (runtime, requests) in [(CUDART_12, 419), (CUDART_13, 481)] {
        let log = place.path("recorded");
        fs::write(&log, "").unwrap();
        let environment = HashMap::from([("RECORDED", place.text("recorded"))]);
        let runtime = cuda(runtime);
        place.run_with(Shim::Active, "client", &["runtime", &runtime.to_string_lossy(), "deepbind"], &[], &environment);
        let recorded = fs::read_to_string(&log).unwrap();
        assert_eq!(recorded.lines().filter(|line| line.ends_with(OURS)).count(), requests);
        assert_eq!(recorded.lines().count(), requests);
    }
}
