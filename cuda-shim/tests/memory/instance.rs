//! Instance of a test: a simulated card, an accounting file, and clients that share them.

use omni_cuda_card::{Card, Settings, State, built};
use omni_gpu_protocol::account::{FILE_BYTES, Header, Slot, Use, slots, sum};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest wait, longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const MIB: u64 = 1 << 20;

/// Versions of the driver that differ: without and with managed pools.
pub(crate) const DRIVERS: [u32; 2] = [12090, 13050];
pub(crate) const MODES: [&str; 2] = ["device", "unified"];

pub(crate) struct Instance {
    pub(crate) dir: TempDir,
    pub(crate) card: Card,
    limit: Option<u64>,
    mode: &'static str,
    is_shimmed: bool,
}

/// Client, killed when dropped.
pub(crate) struct Client {
    pub(crate) child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Instance {
    pub(crate) fn new(driver: u32, mode: &'static str, limit: u64) -> Self {
        Self::with(Settings { driver, ..Settings::numbered(0) }, mode, Some(limit))
    }

    pub(crate) fn with(settings: Settings, mode: &'static str, limit: Option<u64>) -> Self {
        let dir = TempDir::new().unwrap();
        let card = Card::create(&dir.path().join("dev"), &[settings]).unwrap().remove(0);
        omni_cuda_card::driver_dir(&built("libcuda_sim.so").unwrap(), &dir.path().join("driver")).unwrap();
        fs::write(dir.path().join("account"), vec![0; FILE_BYTES]).unwrap();
        Self { dir, card, limit, mode, is_shimmed: true }
    }

    /// The same without the shim, for the driver's own answers.
    pub(crate) fn bare(mut self) -> Self {
        self.is_shimmed = false;
        self
    }

    pub(crate) fn account(&self) -> PathBuf {
        self.dir.path().join("account")
    }

    pub(crate) fn start(&self, scenario: &str) -> Client {
        self.start_with(scenario, &[])
    }

    pub(crate) fn start_with(&self, scenario: &str, variables: &[(&str, &str)]) -> Client {
        let driver = self.dir.path().join("driver");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["client", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env("OMNI_TEST_CLIENT", scenario).env("OMNI_CUDA_SIM", self.dir.path().join("dev"));
        command.env("LD_LIBRARY_PATH", &driver).stdin(Stdio::piped()).stdout(Stdio::piped());
        if self.is_shimmed {
            command.env("LD_PRELOAD", built("libomni_cuda.so").unwrap()).env("OMNI_GPU_DRIVER", &driver);
            command.env("OMNI_GPU_MODE", self.mode).env("OMNI_GPU_ACCOUNT", self.account());
            command.envs(self.limit.map(|limit| ("OMNI_GPU_LIMIT_BYTES", limit.to_string())));
        }
        for (name, value) in variables {
            if value.is_empty() {
                command.env_remove(name)
            } else {
                command.env(name, value)
            };
        }
        let mut child = command.spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Client { child, to, from }
    }

    /// Output of a client until it ends.
    pub(crate) fn run(&self, scenario: &str) -> Vec<String> {
        let mut client = self.start(scenario);
        let mut said = Vec::new();
        while let Some(line) = client.line() {
            said.push(line);
        }
        assert!(client.child.wait().unwrap().success(), "{scenario}: {said:?}");
        said
    }

    pub(crate) fn slots(&self) -> Vec<Slot> {
        slots(&fs::read(self.account()).unwrap()).collect()
    }

    /// Upper bound of all processes in the account.
    pub(crate) fn at_most(&self) -> u64 {
        let mut word = [0; 8];
        let file = fs::File::open(self.account()).unwrap();
        file.read_exact_at(&mut word, offset_of!(Header, at_most) as u64).unwrap();
        u64::from_le_bytes(word)
    }

    /// Sets the bound, as if processes had been killed just before they took so much.
    pub(crate) fn set_at_most(&self, bytes: u64) {
        let file = fs::File::options().write(true).open(self.account()).unwrap();
        file.write_all_at(&bytes.to_le_bytes(), offset_of!(Header, at_most) as u64).unwrap();
    }

    /// Memory of the processes that are alive.
    pub(crate) fn used(&self) -> Use {
        sum(&fs::read(self.account()).unwrap(), |slot| is_alive(slot.pid))
    }

    pub(crate) fn card(&self) -> State {
        self.card.state().unwrap()
    }

    /// Waits until the living have nothing.
    pub(crate) fn expect_nothing(&self) {
        let end = Instant::now() + PATIENCE;
        while self.used() != Use::default() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.used(), Use::default());
    }
}

impl Client {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Next line after the mark of a client's output; `None` at its end.
    pub(crate) fn line(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.from.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some((_, said)) = line.split_once("client: ") {
                return Some(said.trim_end().to_owned());
            }
        }
    }

    pub(crate) fn expect(&mut self, said: &str) {
        assert_eq!(self.line().as_deref(), Some(said));
    }

    /// Lets it go on.
    pub(crate) fn go_on(&mut self) {
        self.tell("");
    }

    /// Sends a command.
    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.to, "{command}").unwrap();
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn end(mut self) {
        let rest: Vec<String> = std::iter::from_fn(|| self.line()).collect();
        assert!(self.child.wait().unwrap().success(), "{rest:?}");
    }
}

/// Prints a line for the test.
pub(crate) fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "client: {what}").unwrap();
    out.flush().unwrap();
}

/// Waits, in a client, until the test lets it go on, or is gone.
pub(crate) fn wait() {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

/// Number of repetitions: all in a soak, a twentieth otherwise.
pub(crate) fn rounds(full: u64) -> u64 {
    if std::env::var_os("OMNI_SOAK").is_some() { full } else { full / 20 }
}
