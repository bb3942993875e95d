//! The `omni-worker` program, read once into sealed memory and run from there.
//!
//! A sandbox that finds a way to `/proc/<pid>/exe` of the process that made it could otherwise write to the program that
//! the next instance runs as root (CVE-2019-5736). All workers of one launcher are of one version this way, too.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Program in sealed memory, which cannot be changed any more.
#[derive(Debug)]
pub struct SealedProgram {
    name: String,
    memory: File,
}

impl SealedProgram {
    /// Reads the program at `path`.
    pub fn seal(path: &Path) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        // Kernels before 6.3 do not know the flag and take every memory file for executable.
        let memory = memfd_create(name.as_str(), flags | MFdFlags::from_bits_retain(libc::MFD_EXEC)).or_else(
            |errno| match errno {
                Errno::EINVAL => memfd_create(name.as_str(), flags),
                other => Err(other),
            },
        )?;
        let mut memory = File::from(memory);
        io::copy(&mut File::open(path)?, &mut memory)?;
        let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self { name, memory })
    }

    /// A command that runs it, with nothing of our environment, in a process group of its own.
    pub fn command(&self) -> Command {
        // The new process resolves this with its own copy of the descriptor, which closes when the program runs.
        let mut command = Command::new(format!("/proc/self/fd/{}", self.memory.as_raw_fd()));
        command.arg0(&self.name).env_clear().current_dir("/").process_group(0);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_sealed_program_runs_and_cannot_be_written() {
        let program = SealedProgram::seal(Path::new("/bin/echo")).unwrap();
        let output = program.command().arg("hello").output().unwrap();
        assert_eq!(output.stdout, b"hello\n");
        assert!((&program.memory).write_all(b"x").is_err());
        let again =
            std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", program.memory.as_raw_fd()));
        assert!(again.and_then(|mut file| file.write_all(b"x")).is_err());
    }
}
