//! Bus of the real daemon, on which a double takes systemd's name. The real systemd is tested in the guests
//! (`tests/vm`).

use super::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command};
use tempfile::TempDir;
use zbus::object_server::SignalEmitter;
use zbus::zvariant::ObjectPath;

/// Bound of each wait. Real answers take milliseconds.
const SHORT: Duration = Duration::from_secs(2);
/// Policy without restrictions, in place of the machine's.
const POLICY: &str = r#"<busconfig><type>session</type><listen>unix:path=SOCKET</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy></busconfig>"#;

/// Daemon of its own, with the double as a client.
struct Machine {
    folder: TempDir,
    daemon: Child,
    _manager: Option<Connection>,
}

impl Machine {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("bus");
        let policy = folder.path().join("policy");
        fs::write(&policy, POLICY.replace("SOCKET", socket.to_str().unwrap())).unwrap();
        let mut machine = Self { daemon: daemon(&policy, &socket), folder, _manager: None };
        machine.manage();
        machine
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("bus")
    }

    fn bus(&self) -> Bus {
        Bus::at(&self.socket(), SHORT)
    }

    fn manage(&mut self) {
        let address = format!("unix:path={}", self.socket().display());
        let builder = Builder::address(address.as_str()).unwrap().method_timeout(SHORT).name(MANAGER).unwrap();
        self._manager = Some(builder.serve_at("/org/freedesktop/systemd1", Manager).unwrap().build().unwrap());
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.daemon.id().cast_signed()), signal).unwrap();
    }

    /// Kills the daemon and starts another one.
    fn restart(&mut self) {
        self.end();
        self.daemon = daemon(&self.folder.path().join("policy"), &self.socket());
        self.manage();
    }

    fn end(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        let _ = fs::remove_file(self.socket());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.end();
    }
}

fn daemon(policy: &Path, socket: &Path) -> Child {
    let mut command = Command::new("dbus-daemon");
    let daemon = command.arg("--config-file").arg(policy).args(["--nofork", "--nopidfile"]).spawn();
    let daemon = daemon.expect("dbus-daemon, of Debian's package of this name");
    let until = Instant::now() + Duration::from_secs(10);
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        assert!(Instant::now() < until, "the daemon listens");
        thread::sleep(Duration::from_millis(5));
    }
    daemon
}

/// Double of systemd: the unit's name decides about the result of a job.
struct Manager;

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    fn subscribe(&self) {}

    async fn stop_unit(
        &self,
        unit: &str,
        mode: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, Refusal> {
        assert_eq!(mode, "fail");
        let job = ObjectPath::try_from("/org/freedesktop/systemd1/job/7").unwrap();
        match unit {
            "missing.scope" => return Err(Refusal::NoSuchUnit(unit.to_owned())),
            "endless.scope" => {}
            // Before the answer, as systemd may do it.
            _ => emitter.job_removed(7, &job, unit, unit.trim_end_matches(".scope")).await.unwrap(),
        }
        Ok(job.into())
    }

    #[zbus(signal)]
    async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: &ObjectPath<'_>,
        unit: &str,
        result: &str,
    ) -> zbus::Result<()>;
}

#[derive(Debug, zbus::DBusError)]
#[zbus(prefix = "org.freedesktop.systemd1")]
enum Refusal {
    NoSuchUnit(String),
}

#[test]
fn jobs_are_waited_for_and_their_results_returned() {
    let machine = Machine::start();
    let bus = machine.bus();
    bus.stop("done.scope").unwrap();
    bus.stop("missing.scope").unwrap();
    let failed = bus.stop("failed.scope").unwrap_err();
    assert!(matches!(&failed, Error::Job { result, .. } if result == "failed"), "{failed}");
    let refused = bus.set("done.scope", &Vec::new()).unwrap_err();
    assert!(matches!(refused, Error::Systemd { action: "SetUnitProperties", .. }), "{refused}");
}

#[test]
fn a_job_without_an_end_is_given_up_and_blocks_no_caller() {
    let machine = Machine::start();
    let bus = machine.bus();
    thread::scope(|scope| {
        let endless = scope.spawn(|| bus.stop("endless.scope").unwrap_err());
        bus.stop("done.scope").unwrap();
        let endless = endless.join().unwrap();
        assert!(matches!(endless, Error::BusSilent { waited: SHORT, .. }), "{endless}");
    });
    bus.stop("done.scope").unwrap();
}

#[test]
fn a_hanging_bus_is_given_up_and_found_again() {
    let machine = Machine::start();
    let (known, new) = (machine.bus(), machine.bus());
    known.stop("done.scope").unwrap();
    machine.signal(Signal::SIGSTOP);
    thread::scope(|scope| {
        // With a connection, and without one: two of each. The second has a part of its time left when the first gives
        // the connection up.
        let callers = [&known, &new, &known, &new].map(|bus| {
            thread::sleep(SHORT / 20);
            scope.spawn(|| bus.stop("done.scope").unwrap_err())
        });
        for caller in callers {
            let error = caller.join().unwrap();
            assert!(matches!(error, Error::BusSilent { waited: SHORT, .. }), "{error}");
        }
    });
    machine.signal(Signal::SIGCONT);
    for bus in [known, new] {
        let until = Instant::now() + 2 * SHORT;
        // An attempt to connect that began before may fail now, for all callers that wait for it.
        while let Err(error) = bus.stop("done.scope") {
            assert!(Instant::now() < until, "{error}");
        }
    }
}

#[test]
fn a_lost_bus_is_reported_and_the_next_one_is_used() {
    let mut machine = Machine::start();
    let bus = machine.bus();
    thread::scope(|scope| {
        let asked = scope.spawn(|| bus.stop("endless.scope").unwrap_err());
        while bus.lock().ended.is_empty() {
            thread::yield_now();
        }
        machine.restart();
        let lost = asked.join().unwrap();
        assert!(matches!(lost, Error::BusLost { .. }), "{lost}");
    });
    bus.stop("done.scope").unwrap();
}

#[test]
fn an_absent_bus_and_a_silent_one_are_different_errors() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("bus");
    let bus = Bus::at(&socket, SHORT);
    let none = bus.stop("done.scope").unwrap_err();
    assert!(matches!(none, Error::NoBus { .. }), "{none}");
    let _mute = UnixListener::bind(&socket).unwrap();
    let mute = bus.stop("done.scope").unwrap_err();
    assert!(mute.to_string().contains("did not answer within 2s for done.scope"), "{mute}");
}
