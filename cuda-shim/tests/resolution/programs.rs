//! Programs of the tests: libraries and clients in C, compiled once per test into a directory that is removed with it.

use crate::driver;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/resolution");

/// Directory laid out as a sandbox sees it: `gpu/` with the shim and the proxy, `driver/` with the driver.
pub(crate) struct Place {
    folder: TempDir,
}

/// The shim in a client's run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shim {
    /// Not loaded: the driver's own answers.
    Absent,
    /// Preloaded, but with nothing set that would make it act.
    Inactive,
    /// Active as in a sandbox, with a limit.
    Active,
}

/// File that this package or the workspace builds.
pub(crate) fn built(name: &str) -> PathBuf {
    omni_cuda_card::built(name).expect("it was built")
}

/// File of the CUDA packages that `make setup` fetched.
pub(crate) fn cuda(file: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.omni/cuda-runtime/nvidia").join(file);
    assert!(file.exists(), "{}: not there; `make setup` fetches it", file.display());
    file.canonicalize().expect("a path")
}

/// Compiles C; `arguments` follow the source, as a linker wants it.
pub(crate) fn compile(source: &Path, out: &Path, arguments: &[&str]) {
    let options = ["-O1", "-Wall", "-Wno-builtin-declaration-mismatch", "-x", "c"];
    let mut cc = Command::new("cc");
    cc.args(options).arg(source).args(["-x", "none", "-o"]).arg(out).args(arguments);
    let output = cc.output().expect("cc runs");
    assert!(output.status.success(), "{cc:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Place {
    /// Creates the directory, with a driver of this version of CUDA or without one.
    pub(crate) fn new(driver_version: Option<u32>) -> Self {
        let place = Self { folder: TempDir::new().expect("a directory") };
        fs::create_dir(place.path("gpu")).expect("a directory");
        fs::create_dir(place.path("driver")).expect("a directory");
        if let Some(version) = driver_version {
            fs::write(place.path("driver.c"), driver::source(version)).expect("a file");
            fs::write(place.path("versions"), "ANY { cu*; };").expect("a file");
            let versions = format!("-Wl,--version-script={}", place.text("versions"));
            // As in a real driver, references to its own functions stay within it.
            let options = ["-shared", "-fPIC", "-Wl,-Bsymbolic,-soname,libcuda.so.1", &versions];
            compile(&place.path("driver.c"), &place.path("driver/libcuda.so.1"), &options);
        }
        symlink(built("libomni_cuda.so"), place.path("gpu/libomni_cuda.so")).expect("a link");
        place.compile("client.c", "client", &["-ldl"]);
        place
    }

    /// Puts a proxy before the driver: the one that is built, with another directory of the driver.
    pub(crate) fn with_proxy(self) -> Self {
        for (file, soname) in [("shim.so", "libomni_cuda.so"), ("real.so", &self.text("driver/libcuda.so.1"))] {
            let options = ["-shared", "-nostdlib", &format!("-Wl,-soname,{soname}")];
            compile(Path::new("/dev/null"), &self.path(file), &options);
        }
        let (shim, driver) = (self.text("shim.so"), self.text("real.so"));
        let options = ["-shared", "-nostdlib", "-Wl,--no-as-needed,-soname,libcuda.so.1", &shim, &driver];
        compile(Path::new("/dev/null"), &self.path("gpu/libcuda.so.1"), &options);
        self
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    pub(crate) fn text(&self, file: &str) -> String {
        self.path(file).into_os_string().into_string().expect("a plain path")
    }

    /// Compiles one of the C files beside this one.
    pub(crate) fn compile(&self, source: &str, out: &str, arguments: &[&str]) {
        compile(&Path::new(SOURCES).join(source), &self.path(out), arguments);
    }

    /// Runs a program here, which must succeed, and returns its output.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, shim: Shim, program: &str, arguments: &[S]) -> String {
        self.run_with(shim, program, arguments, &[], &HashMap::new())
    }

    /// [`run`](Self::run) with libraries that are preloaded before the shim, and more environment.
    pub(crate) fn run_with<S: AsRef<OsStr>>(
        &self,
        shim: Shim,
        program: &str,
        arguments: &[S],
        preloaded: &[&str],
        environment: &HashMap<&str, String>,
    ) -> String {
        let output = self.output(shim, program, arguments, preloaded, environment);
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{program}: {}: {out}{error}", output.status);
        out.into_owned()
    }

    fn output<S: AsRef<OsStr>>(
        &self,
        shim: Shim,
        program: &str,
        arguments: &[S],
        preloaded: &[&str],
        environment: &HashMap<&str, String>,
    ) -> Output {
        let mut preload: Vec<String> = preloaded.iter().map(|file| self.text(file)).collect();
        let mut command = Command::new(self.path(program));
        command.args(arguments).env_clear().envs(environment);
        match shim {
            Shim::Absent => {}
            Shim::Inactive => preload.push(self.text("gpu/libomni_cuda.so")),
            Shim::Active => {
                preload.push(self.text("gpu/libomni_cuda.so"));
                command.env("OMNI_GPU_LIMIT_BYTES", "1073741824").env("OMNI_GPU_DRIVER", self.path("driver"));
            }
        }
        let ours = if shim == Shim::Absent { String::new() } else { self.text("gpu") + ":" };
        command.env("LD_LIBRARY_PATH", ours + &self.text("driver")).env("LD_PRELOAD", preload.join(":"));
        command.output().expect("the client runs")
    }
}
