//! The places where a node runs foreign code, each of which tries every probe beside a neighbour with a secret: models of
//! all kinds, and a package's build step.

use crate::control::SECRET;
use crate::outcomes::Outcomes;
use nix::unistd::Pid;
use omni_tests::index::{Behaviour, Index, write_source};
use omni_tests::process::{is_alive, parent};
use omni_tests::{Node, program};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use tempfile::TempDir;

/// The probes, as files of a model.
const PROBES: [(&str, &str); 7] = [
    ("attempt.py", include_str!("probes/attempt.py")),
    ("descriptors.py", include_str!("probes/descriptors.py")),
    ("files.py", include_str!("probes/files.py")),
    ("kernel.py", include_str!("probes/kernel.py")),
    ("processes.py", include_str!("probes/processes.py")),
    ("sockets.py", include_str!("probes/sockets.py")),
    ("table.py", include_str!("probes/table.py")),
];
/// Models that try them, by name, and what is special about each.
const MODELS: [(&str, &str); 3] = [
    ("alone", "[python]\nzygote = false\n"),
    ("forked", "[python]\nzygote = true\n"),
    ("networked", "[network]\naccess = \"host\"\n"),
];
/// The place that is no model.
pub(crate) const BUILD: &str = "build";
const REQUIREMENTS: (&str, &str) = ("requirements.txt", "omni-one==1.0\n");
const BUILT: &str = "import omni_hostile\ndef handle_request(request, context):\n    return omni_hostile.FOUND\n";
/// Ends the manager's receiving loop.
const ENOUGH: &[u8] = b"enough";

/// The names of all probes, as their files have them.
pub(crate) fn probes() -> BTreeSet<&'static str> {
    let functions = PROBES.iter().flat_map(|(_, text)| text.split("@probe\ndef ").skip(1));
    let names: BTreeSet<_> = functions.filter_map(|text| Some(text.split_once('(')?.0)).collect();
    assert!(names.len() > 50, "{names:?}");
    names
}

pub(crate) struct Places {
    node: Node,
    place: &'static str,
    victim: Pid,
    /// The victim's own facts.
    facts: Value,
    index: Index,
    /// Packages from source.
    links: TempDir,
    host: Host,
}

/// Parts of the host that a sandbox must not reach.
struct Host {
    folder: TempDir,
    _listeners: [UnixListener; 2],
    name: String,
    manager: JoinHandle<Vec<String>>,
}

impl Host {
    fn start() -> Self {
        let folder = TempDir::with_prefix("omni-escape").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.path().join("mark"), SECRET).unwrap();
        fs::write(folder.path().join("credential"), SECRET).unwrap();
        let name = format!("omni-escape-host-{}", std::process::id());
        let bound = UnixListener::bind(folder.path().join("socket")).unwrap();
        let named = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        // Writable for all users: no sandbox should rest on their modes.
        for socket in ["socket", "notify"] {
            fs::set_permissions(folder.path().join(socket), Permissions::from_mode(0o777)).unwrap();
        }
        let manager = thread::spawn(move || {
            let mut heard = Vec::new();
            let mut buffer = [0; 4096];
            while let Ok(length) = manager.recv(&mut buffer) {
                if &buffer[..length] == ENOUGH {
                    break;
                }
                heard.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
            }
            heard
        });
        Self { folder, _listeners: [bound, named], name, manager }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Places {
    /// A node with this place, which is started, and a neighbour.
    pub(crate) fn start(place: &'static str) -> Self {
        let (host, index, links) = (Host::start(), Index::start(Behaviour::Serves), tempfile::tempdir().unwrap());
        fs::set_permissions(links.path(), Permissions::from_mode(0o755)).unwrap();
        index.add("omni-one", "WORD = 'one'\n", &[]);
        let sources =
            format!("[python]\nindex-url = \"{}\"\nfind-links = [\"{}\"]\n", index.url(), links.path().display());
        let secret = format!("[env]\nESCAPE_SECRET = \"{SECRET}\"\n");
        let victim = [("model.py", include_str!("probes/victim.py")), ("omni.toml", &secret), REQUIREMENTS];
        let mut builder = Node::builder()
            .config(crate::ROOMY)
            .config(&sources)
            .config("[network]\nhost-access = [\"networked\"]\n")
            .environment("NOTIFY_SOCKET", host.path("notify").to_str().unwrap())
            .model("victim", &victim);
        let model = MODELS.iter().find(|(model, _)| *model == place);
        if let Some((model, manifest)) = model {
            let own = [("model.py", include_str!("probes/model.py")), ("omni.toml", *manifest), REQUIREMENTS];
            builder = builder.model(model, &[&PROBES[..], &own].concat());
        }
        let node = builder.start();
        let facts = answer(&node, "victim", &json!(null));
        let victim = node.engine("victim").expect("a process");
        if let Some((model, _)) = model {
            assert_eq!(node.omnictl(["start", model, "--wait"]).code, 0, "{model}: {}", node.log());
        }
        Self { node, place, victim, facts, index, links, host }
    }

    /// The interpreter of the models, on the host.
    pub(crate) fn interpreter(&self) -> PathBuf {
        let python = self.package().ancestors().nth(4).expect("an environment").join("bin/python");
        fs::canonicalize(python).unwrap()
    }

    /// Outcomes of all probes.
    pub(crate) fn try_all(&self) -> Outcomes {
        let found = if self.place == BUILD {
            self.publish_build();
            answer(&self.node, "hostile", &json!(null))
        } else {
            let mut world = self.world();
            // A build has a private copy there.
            world["files"].as_array_mut().expect("paths").push(json!("/model/model.py"));
            answer(&self.node, self.place, &world)
        };
        serde_json::from_value(found).expect("an object")
    }

    /// Asserts that nothing was received, lost or changed.
    pub(crate) fn assert_untouched(self) {
        let Self { node, place: _, victim, facts, index: _index, links: _links, host } = self;
        assert_eq!(answer(&node, "victim", &json!(null)), facts);
        assert_eq!((node.model("victim").restarts, node.engine("victim")), (0, Some(victim)));
        assert!(is_alive(victim) && node.launcher().is_some());
        node.stop();
        UnixDatagram::unbound().unwrap().send_to(ENOUGH, host.path("notify")).unwrap();
        let heard = host.manager.join().expect("the manager");
        assert!(heard.iter().any(|message| message.contains("READY=1")), "the node speaks to it: {heard:?}");
        assert!(!heard.iter().any(|message| message.contains("forged")), "{heard:?}");
        assert_eq!(fs::read_to_string(host.folder.path().join("mark")).unwrap(), SECRET);
    }

    /// Facts of the host that probes need, with their paths there.
    fn world(&self) -> Value {
        let (node, facts) = (&self.node, &self.facts);
        let folder = node.folder().parent().expect("the node's folder").to_owned();
        let runtime = node.control_socket().parent().expect("the runtime folder").to_owned();
        let instance = node.instance("victim").expect("an instance");
        let version = node.model("victim").version.expect("a version");
        let processes = [
            Some(self.victim),
            parent(self.victim),
            node.worker(self.victim),
            node.launcher(),
            Some(node.pid()),
            Some(Pid::this()),
        ];
        let hierarchies = fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
        let hierarchies = hierarchies.chain(["/sys/fs/cgroup".into()]).map(|dir| dir.join("cgroup.procs"));
        json!({
            "secret": SECRET,
            "processes": processes.map(|pid| pid.expect("a process").as_raw()),
            "address": facts["address"],
            "descriptor": facts["descriptor"],
            "segment": facts["segment"],
            "mark": self.host.path("mark"),
            "scratch": "/tmp",
            "paths": [
                runtime.join("control.sock"), runtime.join("launcher.sock"), node.worker_socket(&instance.id),
                self.host.path("socket"), facts["path"],
            ],
            "names": [facts["name"], self.host.name],
            "ports": [node.data_address().port(), node.admin_address().port(), facts["port"]],
            "notify": [self.host.path("notify")],
            "secrets": [
                Path::new("/etc/shadow"), &self.host.path("mark"), &self.host.path("credential"),
                &folder.join("node.toml"), &folder.join("models/victim/omni.toml"), &folder.join("log"),
                &folder.join(format!("state/snapshots/{version}/omni.toml")), Path::new(facts["mark"].as_str().unwrap()),
            ],
            "folders": [
                Path::new("/var/lib"), Path::new("/sys/fs/cgroup"), Path::new("/sys/kernel"), &runtime,
                self.host.folder.path(), &folder.join("models"), &folder.join("state"), &folder.join("cache/uv"),
                &folder.join("cache/models"),
            ],
            "files": [
                Path::new("/etc/passwd"), Path::new("/usr/bin/env"), Path::new("/omni/python/omni/__init__.py"),
                Path::new("/proc/sysrq-trigger"), Path::new("/proc/sys/kernel/core_pattern"), Path::new("/proc/meminfo"),
                Path::new("/proc/self/oom_score_adj"), &program("omni-launcher"), &program("omni-worker"),
                &self.interpreter(), &self.package(), &self.host.path("mark"), &folder.join("models/victim/model.py"),
            ],
            "package": self.package(),
            "devices": ["/dev/loop0", "/dev/console", "/dev/vda", "/dev/sda"],
            "groups": hierarchies.filter(|procs| procs.exists()).collect::<Vec<_>>(),
            "remount": "/usr",
        })
    }

    /// A module of the environment that the models share.
    fn package(&self) -> PathBuf {
        let environments = self.node.folder().with_file_name("cache").join("environments");
        let libraries = |entry: fs::DirEntry| fs::read_dir(entry.path().join("lib")).ok();
        let pythons = fs::read_dir(environments).unwrap().flatten().filter_map(libraries).flatten().flatten();
        let mut modules = pythons.map(|python| python.path().join("site-packages/omni_one.py"));
        modules.find(|module| module.exists()).expect("the models' environment")
    }

    /// A package without a wheel, whose build step tries the probes.
    fn publish_build(&self) {
        let sources: Value = PROBES.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect();
        let own = include_str!("probes/backend.py");
        // JSON of texts and numbers is Python.
        let backend = format!("SOURCES = {sources}\nWORLD = {}\n{own}", self.world());
        write_source(self.links.path(), "omni-hostile", &backend);
        self.node.publish("hostile", &[("model.py", BUILT), ("requirements.txt", "omni-hostile==1.0\n")]);
        self.node.await_seen("hostile");
    }
}

/// Answer of a model.
fn answer(node: &Node, model: &str, body: &Value) -> Value {
    let answer = node.http().run(model, body);
    let why = || format!("{:?}\n{}", node.model(model), node.log());
    assert_eq!(answer.status, 200, "{model}: {}\n{}", answer.text(), why());
    answer.json()["result"].take()
}
