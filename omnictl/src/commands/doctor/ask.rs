//! Probes by the node's own programs: `omni-launcher --probe` and `omni-scheduler --probe`.
//!
//! Invariant: a program that does not answer, because the GPU's driver is stuck for example, is given up.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::verdict::Answers;

/// Where the package puts the node's programs.
const INSTALLED: &str = "/usr/lib/omni";
const LAUNCHER: &str = "omni-launcher";
const SCHEDULER: &str = "omni-scheduler";
/// How long a program may take; the launcher bounds each of its trials by 20 seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest answer that is read, in bytes.
const MOST: u64 = 1 << 20;

/// Everything that they know.
pub(super) fn all(config: Option<&Path>) -> Answers {
    let own = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
    let places = own.into_iter().chain([PathBuf::from(INSTALLED)]);
    let programs = places.into_iter().find(|place| place.join(LAUNCHER).is_file());
    let Some(place) = &programs else { return Answers::NoPrograms };
    Answers::Programs {
        worker: place.join("omni-worker").is_file(),
        machine: ask(&place.join(LAUNCHER), config).map(Box::new),
        service: ask(&place.join(SCHEDULER), config),
        place: place.clone(),
    }
}

fn ask<T: DeserializeOwned>(program: &Path, config: Option<&Path>) -> Result<T, String> {
    let name = program.display();
    let mut command = Command::new(program);
    command.arg("--probe").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    let mut child = command.spawn().map_err(|error| format!("{name} cannot be run: {error}"))?;
    let Some(stdout) = child.stdout.take() else { return Err(format!("{name} has no output")) };
    let (tell, told) = sync_channel(1);
    thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.take(MOST).read_to_string(&mut text);
        let _ = tell.send(read.map(|_| text)); // given up meanwhile
    });
    let Ok(read) = told.recv_timeout(PATIENCE) else {
        // Not waited for: the kernel may hold it for as long as it likes.
        let _ = child.kill().and_then(|()| child.try_wait());
        return Err(format!("{name} --probe did not answer within {PATIENCE:?}"));
    };
    let text = read.map_err(|error| format!("{name} --probe cannot be read: {error}"))?;
    let status = child.wait().map_err(|error| format!("{name} --probe was lost: {error}"))?;
    if !status.success() {
        return Err(format!("{name} --probe ended with {status}; run it to see why"));
    }
    serde_json::from_str(&text).map_err(|error| format!("{name} --probe is of another version: {error}"))
}
