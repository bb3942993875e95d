//! Runs a program to its end, bounded in time and output. For interpreters, byte compilation and the steps of a build.

use nix::unistd::Pid;
use omni_process::pidfd;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The end of a program's output that is kept, in bytes.
pub(crate) const TAIL: usize = 16 * 1024;
/// The longest line that is handed on, in bytes.
const LINE: usize = 1024;
/// How often it is asked whether the program may go on.
const ASKED_EVERY: Duration = Duration::from_secs(1);

/// How a program ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` when a signal ended the program.
    pub code: Option<i32>,
    /// Exit status in words, for a program that wrote nothing: "exit status: 1", "signal: 9 (SIGKILL)".
    pub end: String,
    /// The end of what it wrote to standard output and error.
    pub tail: String,
}

/// A program did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program could not be started, or its pipes failed.
    #[error("cannot run it")]
    Io(#[from] io::Error),
    /// Killed for taking too long.
    #[error("it was stopped after {limit:?}; it had said:\n{tail}")]
    TimedOut {
        /// The limit.
        limit: Duration,
        /// The end of its output.
        tail: String,
    },
    /// Killed because it may not go on; why.
    #[error("{0}")]
    Stopped(String),
}

/// Runs a program for its output alone: without input, and without a reader of its lines.
pub(crate) fn ask(command: Command, limit: Duration) -> Result<Finished, CommandError> {
    run(command, b"", limit, |_| Ok(()), |_| (), || Ok(()))
}

/// Runs `command` with `input` (less than a pipe holds, 64 KiB) on its standard input. `on_spawn` sees its process id
/// before it gets any input; `on_line` sees each line of its output; `may_go_on` is asked every second, and says why not.
pub(crate) fn run(
    mut command: Command,
    input: &[u8],
    limit: Duration,
    on_spawn: impl FnOnce(Pid) -> io::Result<()>,
    mut on_line: impl FnMut(&str),
    mut may_go_on: impl FnMut() -> Result<(), String>,
) -> Result<Finished, CommandError> {
    let deadline = Instant::now() + limit;
    let (mut output, theirs) = io::pipe()?;
    command.stdin(Stdio::piped()).stdout(theirs.try_clone()?).stderr(theirs);
    let mut child = command.spawn()?;
    drop(command); // with it our copies of the pipe's other end
    let pid = Pid::from_raw(child.id().cast_signed());
    let run = || -> Result<(bool, String), CommandError> {
        let pidfd = pidfd::open(pid).map_err(io::Error::from)?;
        on_spawn(pid)?;
        if let Some(mut stdin) = child.stdin.take() {
            match stdin.write_all(input) {
                // The program ended before it read all: its end says more than a broken pipe.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                written => written.map_err(CommandError::Io)?,
            }
        }
        let mut tail = Vec::new();
        let mut line = Vec::new();
        let mut buffer = vec![0; 8192];
        let mut asked = Instant::now();
        loop {
            if asked.elapsed() >= ASKED_EVERY {
                may_go_on().map_err(CommandError::Stopped)?;
                asked = Instant::now();
            }
            let until = deadline.min(asked + ASKED_EVERY);
            if !pidfd::readable_before(&output, until).map_err(io::Error::from)? {
                if until == deadline {
                    return Ok((false, text(&tail)));
                }
                continue;
            }
            let read = output.read(&mut buffer)?;
            let chunk = buffer.get(..read).unwrap_or_default();
            if chunk.is_empty() {
                let has_ended = pidfd::readable_before(&pidfd, deadline).map_err(io::Error::from)?;
                return Ok((has_ended, text(&tail)));
            }
            for byte in chunk {
                match byte {
                    b'\n' => {
                        on_line(&text(&line));
                        line.clear();
                    }
                    _ if line.len() < LINE => line.push(*byte),
                    _ => {}
                }
            }
            tail.extend_from_slice(chunk);
            tail.drain(..tail.len().saturating_sub(TAIL));
        }
    };
    let ended = run();
    if !matches!(ended, Ok((true, _))) {
        // Fails only when it has ended by itself, which is as good.
        let _ = child.kill();
    }
    let status = child.wait()?;
    match ended? {
        (true, tail) => Ok(Finished { code: status.code(), end: status.to_string(), tail }),
        (false, tail) => Err(CommandError::TimedOut { limit, tail }),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> (Result<Finished, CommandError>, Vec<String>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut lines = Vec::new();
        (run(command, b"input\n", limit, |_| Ok(()), |line| lines.push(line.to_owned()), || Ok(())), lines)
    }

    #[test]
    fn output_lines_and_code() {
        let (finished, lines) = sh("cat; echo two >&2; exit 3", Duration::from_secs(20));
        assert_eq!((finished.unwrap().code, lines), (Some(3), vec!["input".to_owned(), "two".to_owned()]));
    }

    #[test]
    fn much_output_is_cut_to_its_end() {
        let (finished, lines) = sh("head -c 100000 /dev/zero | tr '\\0' x; echo; echo end", Duration::from_secs(20));
        let tail = finished.unwrap().tail;
        assert_eq!((tail.len(), lines.len(), lines[0].len()), (TAIL, 2, LINE));
        assert!(tail.ends_with("x\nend\n"));
    }

    #[test]
    fn a_command_that_takes_too_long_is_stopped_and_reaped() {
        let (error, _) = sh("echo begun; exec sleep 60", Duration::from_millis(300));
        assert!(matches!(error, Err(CommandError::TimedOut { tail, .. }) if tail == "begun\n"));
    }

    #[test]
    fn a_cancelled_command_is_stopped_with_and_without_output() {
        for script in ["exec sleep 60", "while :; do echo on; done"] {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let limit = Duration::from_secs(60);
            let error = run(command, b"", limit, |_| Ok(()), |_| (), || Err("no more".to_owned())).unwrap_err();
            assert_eq!(error.to_string(), "no more", "{script}");
        }
    }

    /// More than a pipe holds, so that writing it certainly fails.
    #[test]
    fn a_command_that_ends_before_it_has_read_its_input_reports_its_end() {
        for (script, code, end) in [("exit 3", Some(3), "exit status: 3"), ("kill -9 $$", None, "signal: 9 (SIGKILL)")]
        {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let input = vec![b'x'; 1 << 20];
            let finished = run(command, &input, Duration::from_secs(20), |_| Ok(()), |_| (), || Ok(())).unwrap();
            assert_eq!((finished.code, finished.end.as_str(), finished.tail.as_str()), (code, end, ""), "{script}");
        }
    }

    #[test]
    fn a_closed_output_does_not_end_the_command() {
        let (error, _) = sh("exec >&- 2>&-; exec sleep 60", Duration::from_millis(300));
        assert!(matches!(error, Err(CommandError::TimedOut { .. })));
    }
}
