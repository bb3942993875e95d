//! `omni-worker`: serves one instance, or runs one step of a build, in a sandbox. Started by `omni-launcher`.

use omni_worker::process;
use std::process::ExitCode;

fn main() -> ExitCode {
    match process::run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            process::say(&omni_log::chain(&error));
            ExitCode::FAILURE
        }
    }
}
