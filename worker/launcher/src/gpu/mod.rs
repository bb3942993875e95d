//! GPU files in the sandbox of a model with a GPU: the device files of its card, the driver's libraries, the shim
//! before them, and the variables by which programs find the driver's libraries. The shim needs none.
//!
//! Called by [`super::start`]. Inside, everything is below `/gpu` (`omni_gpu_protocol::env::inside`):
//!
//! | path | content |
//! | --- | --- |
//! | `/gpu/libomni_cuda.so` | the shim, preloaded by `/etc/ld.so.preload`, which the worker writes |
//! | `/gpu/libcuda.so.1` | the proxy: a program that opens the driver past the preload gets the shim first, too |
//! | `/gpu/driver/` | the driver's own libraries, in the library path behind `/gpu` |
//! | `/gpu/control.sock` | the worker's socket |
//! | `/gpu/account` | the accounting file, made by the worker, with the limit and the mode in its header |
//!
//! Copies of `libcuda` that the sandbox would show at their own places in `/usr` are covered with the proxy.
//!
//! Invariants: no other card has a device file in the sandbox; every path comes from root's configuration or the
//! system.

mod driver;
mod found;
mod loader_cache;
mod shim;

pub(super) use found::found;

use super::Settings;
use omni_config::NodeConfig;
use omni_gpu_protocol::env::inside;
use omni_node_protocol::launcher::GpuSpec;
use omni_sandbox::Bind;
use shim::Shim;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Device files of the driver beside the card's own: its control, and unified memory. `nvidia-uvm-tools` is for
/// profilers, `nvidia-caps` for parts of cards, `nvidia-modeset` for screens.
const COMMON: [&str; 2] = ["nvidiactl", "nvidia-uvm"];
/// Read and write for all users, as the driver makes device files.
const FOR_ALL: u32 = 0o006;

/// GPU configuration of a node.
#[derive(Debug)]
pub(super) struct Gpus {
    shim: Option<Shim>,
    program_dir: PathBuf,
    device_dir: PathBuf,
    driver_dir: Option<PathBuf>,
}

/// GPU files of one sandbox.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) devices: Vec<PathBuf>,
    pub(super) binds: Vec<Bind>,
}

/// A model with a GPU cannot be started here.
#[derive(Debug, thiserror::Error)]
pub(super) enum GpuError {
    #[error(
        "libomni_cuda.so or libomni_cuda_proxy.so is not in {}: install both from the same build as omni-launcher, \
         then restart it", dir.display()
    )]
    NoShim { dir: PathBuf },
    #[error("{}: load the driver's kernel modules (nvidia, nvidia-uvm), or set `device-dir` in [gpu]", path.display())]
    NoDevice {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not a device file that every user may read and write", path.display())]
    BadDevice { path: PathBuf },
    #[error(
        "there is no libcuda.so.1 for this machine {}: install the driver, or set `driver-dir` in [gpu]",
        dir.as_ref().map_or("where the dynamic linker looks".to_owned(), |dir| format!("in {}", dir.display()))
    )]
    NoDriver { dir: Option<PathBuf> },
    #[error("cannot read {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Gpus {
    /// Copies the shim, where there is one; with `alone`, no model runs with another version.
    pub(super) fn open(settings: &Settings, alone: bool) -> io::Result<Self> {
        let program_dir = settings.program_dir.clone().unwrap_or_default();
        let NodeConfig { gpu, .. } = &settings.config;
        Ok(Self {
            shim: Shim::install(&program_dir, &settings.state_dir.join("gpu"), alone)?,
            program_dir,
            device_dir: gpu.device_dir.clone(),
            driver_dir: gpu.driver_dir.clone(),
        })
    }

    /// Collects the GPU files for the sandbox of a model on this card; `control` is the worker's socket on the host.
    pub(super) fn grant(&self, gpu: &GpuSpec, control: PathBuf) -> Result<Grant, GpuError> {
        let Some(shim) = &self.shim else { return Err(GpuError::NoShim { dir: self.program_dir.clone() }) };
        let own = format!("nvidia{}", gpu.minor);
        let devices: Vec<_> = [own.as_str()].into_iter().chain(COMMON).map(|name| self.device_dir.join(name)).collect();
        devices.iter().try_for_each(|path| check_device(path))?;

        let driver_dir = self.driver_dir.as_deref();
        let bind = |source: PathBuf, target: PathBuf| Bind { source, target, writable: false };
        let mut binds = vec![
            bind(shim.library(), inside::SHIM.into()),
            bind(shim.proxy(), inside::PROXY.into()),
            bind(control, inside::CONTROL.into()),
        ];
        let own = |(name, path): (String, PathBuf)| bind(path, Path::new(inside::DRIVER).join(name));
        binds.extend(driver::libraries(driver_dir)?.into_iter().map(own));
        binds.extend(driver::exposed(driver_dir)?.into_iter().map(|path| bind(shim.proxy(), path)));
        Ok(Grant { devices, binds })
    }
}

/// Checks a device file now: one that is missing, or that the instance's user cannot use, would only show in the model,
/// as a machine without a GPU.
fn check_device(path: &Path) -> Result<(), GpuError> {
    let found = fs::metadata(path).map_err(|source| GpuError::NoDevice { path: path.to_owned(), source })?;
    // The simulated card is made of plain files.
    let is_one = found.file_type().is_char_device() || found.is_file();
    if is_one && found.permissions().mode() & FOR_ALL == FOR_ALL {
        return Ok(());
    }
    Err(GpuError::BadDevice { path: path.to_owned() })
}

/// Ours, which no manifest may set. `cache` is a directory of the model that lasts as long as one can.
pub(super) fn variables(gpu: &GpuSpec, cache: &str) -> Vec<(&'static str, String)> {
    vec![
        ("LD_LIBRARY_PATH", format!("{}:{}", inside::DIR, inside::DRIVER)),
        ("CUDA_VISIBLE_DEVICES", gpu.uuid.clone()),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        // Kernels that the driver compiled once.
        ("CUDA_CACHE_PATH", format!("{cache}/.nv")),
    ]
}
