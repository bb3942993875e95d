//! GPUs: the driver, each card, and what models are given of both. Pure.

use omni_machine::{Card, GpuFiles, Probe, Service};

use super::{Check, Line};
use crate::human::size;

/// Cost of having no card.
const NO_GPU: &str = "models that ask for GPU memory are refused; all others are served";
/// Device files that every card needs beside its own.
const COMMON: [&str; 2] = ["nvidiactl", "nvidia-uvm"];

pub(super) fn lines(files: &GpuFiles, service: &Result<Service, String>) -> Vec<Line> {
    let cards = match service.as_ref().map(|service| &service.cards) {
        Ok(Probe::Works(cards)) => cards,
        Ok(Probe::Fails(words)) => return vec![driver(files).failed(words)],
        Ok(Probe::Untried(words)) | Err(words) => return vec![driver(files).unknown(words)],
    };
    let version = files.driver.as_ref().map_or_else(String::new, |version| format!("{version}, "));
    let mut lines = vec![driver(files).ok(format!("{version}cards: {}", cards.len()))];
    for card in cards {
        lines.push(unified(card));
        lines.push(device(files, &format!("nvidia{}", card.minor)));
    }
    lines.extend(COMMON.map(|name| device(files, name)));
    lines.push(
        Check::wanted(
            "GPU libraries",
            "models with a GPU do not start",
            "install the driver's libraries for CUDA, or say where they are: `driver-dir` below [gpu]",
        )
        .tried(&files.libraries, |place| place.display().to_string()),
    );
    let cost = "models with a GPU do not start";
    let mend = "install libomni_cuda.so and libomni_cuda_proxy.so of the same build beside omni-launcher";
    let found = if files.shim { "beside omni-launcher" } else { "not beside omni-launcher" };
    lines.push(Check::wanted("GPU shim", cost, mend).enough(files.shim, found));
    lines
}

/// Where the kernel has a module of the driver, a machine without cards has a driver that is broken.
fn driver(files: &GpuFiles) -> Check {
    let mend = match &files.driver {
        None => "with a card: install NVIDIA's driver and load its modules nvidia and nvidia-uvm; without one: nothing"
            .into(),
        Some(version) => format!(
            "the kernel has version {version}: install the libraries of the same one (`nvidia-smi` must work), and a newer \
             driver where a call is missing"
        ),
    };
    Check::wanted("GPU driver", NO_GPU, mend)
}

fn unified(card: &Card) -> Line {
    let cost = "models are refused there unless they say `gpu-mode = \"device\"`, and their memory stays on the card";
    let mend = "load nvidia-uvm; a card with concurrent managed access, as data-centre cards have it on Linux";
    let what = format!("{}, {}: memory can be moved", card.name, size(card.total_bytes));
    Check::wanted(format!("GPU {}", card.index), cost, mend).tried(&card.unified, |()| what)
}

fn device(files: &GpuFiles, name: &str) -> Line {
    let mend = "modprobe nvidia nvidia-uvm; nvidia-modprobe -u -c 0; files are for everybody (mode 0666) unless the driver \
                was told otherwise (NVreg_DeviceFileMode)";
    let check = Check::wanted(name, "models on the card do not start", mend);
    match files.devices.iter().find(|(known, _)| known == name) {
        Some((_, trial)) => check.tried(trial, |()| "every user may use it".to_owned()),
        None => check.failed("is not there"),
    }
}
