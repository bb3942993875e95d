//! GPU files on this machine, whether or not a model asks for them. For [`crate::machine`].

use super::{COMMON, check_device, driver, shim};
use omni_config::node::Gpu;
use omni_log::chain;
use omni_machine::{GpuFiles, Probe};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the driver's kernel module says its version.
const MODULE: &str = "/sys/module/nvidia/version";

/// Driver, devices and libraries of the machine, as [`super::Gpus::grant`] looks for them.
pub(crate) fn found(config: &Gpu, program_dir: Option<&Path>) -> GpuFiles {
    GpuFiles {
        driver: fs::read_to_string(MODULE).ok().map(|version| version.trim().to_owned()),
        devices: devices(&config.device_dir),
        libraries: libraries(config.driver_dir.as_deref()),
        shim: program_dir.is_some_and(shim::is_in),
    }
}

fn devices(dir: &Path) -> Vec<(String, Probe)> {
    let names =
        fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_card = |name: &String| name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
    let mut names: Vec<String> = names.filter(is_card).collect();
    names.sort();
    names.extend(COMMON.map(str::to_owned));
    let check = |name: String| {
        let usable = check_device(&dir.join(&name)).map_err(|error| chain(&error));
        (name, usable.into())
    };
    names.into_iter().map(check).collect()
}

fn libraries(dir: Option<&Path>) -> Probe<PathBuf> {
    let parent = |(_, path): &(String, PathBuf)| path.parent().map(Path::to_owned);
    let place = driver::libraries(dir).map(|found| found.first().and_then(parent).unwrap_or_default());
    place.map_err(|error| chain(&error)).into()
}
