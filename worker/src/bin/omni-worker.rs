//! `omni-worker`: serves one instance, or runs one step of a build, in a sandbox. Started by `omni-launcher`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    match omni_instance::run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            omni_instance::log_line(&omni_log::chain(&error));
            ExitCode::FAILURE
        }
    }
}
