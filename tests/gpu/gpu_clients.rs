//! Clients of the GPU that we did not write, unmodified, on the simulated driver: alone, and behind the shim in both
//! modes. Alone they see the card; behind the shim they see their instance's share of it, and get no byte more.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step of a test is a failed test")]

use omni_cuda_card::{Card, DIRECTORY, Settings, driver_dir};
use std::env;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const CARD: u64 = 2 << 30;
/// Memory limit of an instance. Odd, so that no client sees it by accident.
const SHARE: u64 = (1 << 30) + (6 << 20);

/// Layers between a client and the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    /// The shim, in this mode.
    Shim(&'static str),
}

const ALL: [Between; 3] = [Between::Nothing, Between::Shim("device"), Between::Shim("unified")];

#[test]
fn cuda_bindings_of_cuda_12() {
    python("cuda12", 12090, &["test_driver.py", "test_sharing.py"]);
}

#[test]
fn cuda_bindings_of_cuda_12_on_a_newer_driver() {
    python("cuda12", 13050, &["test_driver.py", "test_sharing.py"]);
}

#[test]
fn cuda_bindings_of_cuda_13() {
    python("cuda13", 13050, &["test_driver.py", "test_sharing.py"]);
}

#[test]
fn numba_cuda() {
    python("cuda13", 13050, &["test_numba.py"]);
}

#[test]
fn nvidia_ml_py() {
    python("cuda13", 13050, &["test_nvml.py"]);
}

/// A program that knows only the runtime; the runtime is a double of ours, which finds the driver as the real one does.
#[test]
fn a_program_of_the_runtime() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/gpu/runtime.c");
    let runtime = omni_tests::program("libcudart_double.so");
    for (between, driver) in ALL.into_iter().flat_map(|between| [(between, 12090), (between, 13050)]) {
        let bench = Bench::new(driver);
        let program = bench.dir.path().join("runtime");
        let compiled =
            Command::new("cc").args(["-Wall", "-Werror", "-o"]).arg(&program).arg(&source).arg(&runtime).output();
        let compiled = compiled.expect("cc, which links every Rust program");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        bench.run(bench.client(&program, between), between);
    }
}

#[test]
fn cudarc() {
    let client = Path::new(env!("CARGO_BIN_EXE_cudarc-client"));
    for between in ALL {
        let bench = Bench::new(12090);
        bench.run(bench.client(client, between), between);
    }
}

#[test]
fn cudarc_without_a_driver() {
    let output = Command::new(env!("CARGO_BIN_EXE_cudarc-client")).env_remove("OMNI_TEST_TOTAL").output().unwrap();
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// Runs files of `clients/gpu` in one of the environments that `make setup` makes.
fn python(environment: &str, driver: u32, files: &[&str]) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = tests.parent().unwrap().join(".omni/gpu-clients").join(environment).join("bin/python");
    assert!(python.exists(), "{} is not there: `make setup` makes it", python.display());
    for between in ALL {
        let bench = Bench::new(driver);
        let mut client = bench.client(&python, between);
        client
            .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
            .args(files)
            .current_dir(tests.join("clients/gpu"));
        bench.run(client, between);
    }
}

/// A machine with one card, and the driver for it.
struct Bench {
    dir: TempDir,
    card: Card,
}

impl Bench {
    fn new(driver: u32) -> Self {
        let dir = TempDir::new().unwrap();
        let settings = Settings { memory: CARD, driver, ..Settings::numbered(0) };
        let card = Card::create(&dir.path().join("dev"), &[settings]).unwrap().remove(0);
        driver_dir(&omni_tests::program("libcuda_sim.so"), &dir.path().join("driver")).unwrap();
        Self { dir, card }
    }

    /// A program that finds this machine, without special code.
    fn client(&self, program: &Path, between: Between) -> Command {
        let mut client = Command::new(program);
        client.env(DIRECTORY, self.dir.path().join("dev")).env("LD_LIBRARY_PATH", self.dir.path().join("driver"));
        match between {
            Between::Nothing => client.env("OMNI_TEST_TOTAL", CARD.to_string()),
            Between::Shim(mode) => client
                .env("OMNI_TEST_TOTAL", SHARE.to_string())
                .env("OMNI_GPU_LIMIT_BYTES", SHARE.to_string())
                .env("OMNI_GPU_MODE", mode)
                .env("LD_PRELOAD", omni_tests::program("libomni_cuda.so")),
        };
        client
    }

    /// Runs a client: it succeeds and uses the card, and leaves nothing allocated.
    fn run(&self, mut client: Command, between: Between) {
        let output = client.output().expect("the client starts");
        let told = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{between:?}: {}\n{told}", output.status);
        let state = self.card.state().unwrap();
        assert_eq!((state.used(), state.processes.len()), (0, 0), "{between:?}: {told}");
    }
}
