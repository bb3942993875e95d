//! Builder of a test's node: says what it serves and how it is configured, and starts it.

use crate::fault::Programs;
use crate::program::program;
use crate::setup::NodeSetup;
use crate::{Disk, Node};
use omni_cuda_card::Settings;
use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

/// A node to be started: its models and its configuration. Models can also be published later, on the running node.
#[derive(Debug)]
pub struct NodeBuilder {
    setup: NodeSetup,
    config: String,
}

impl Node {
    /// A node without models and with default configuration.
    #[must_use]
    pub fn builder() -> NodeBuilder {
        NodeBuilder { setup: NodeSetup::new(), config: String::new() }
    }
}

impl NodeBuilder {
    /// Adds lines to the node's configuration, below its `[node]` section.
    #[must_use]
    pub fn config(mut self, toml: &str) -> Self {
        self.config.push_str(toml);
        self
    }

    /// Gives the node simulated cards and the simulated driver; `toml` goes into the `[gpu]` section of its
    /// configuration. [`Node::cards`] are they.
    #[must_use]
    pub fn gpus(mut self, cards: &[Settings], toml: &str) -> Self {
        let (devices, driver) = (self.setup.path("devices"), self.setup.path("driver"));
        self.setup.cards = omni_cuda_card::create(&devices, cards).expect("simulated cards");
        omni_cuda_card::driver_dir(&program("libcuda_sim.so"), &driver).expect("the simulated driver");
        let places = format!("driver-dir = \"{}\"\ndevice-dir = \"{}\"", driver.display(), devices.display());
        self.config(&format!("\n[gpu]\n{places}\n{toml}\n"))
    }

    /// Adds a model from texts.
    #[must_use]
    pub fn model(self, name: &str, files: &[(&str, &str)]) -> Self {
        self.setup.publish(name, files);
        self
    }

    /// Adds one of the project's example models, with the weights that set-up put beside it.
    #[must_use]
    pub fn example(self, name: &str) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models").join(name);
        let files = fs::read_dir(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
        let content = |path: PathBuf| {
            let name = path.file_name().and_then(OsStr::to_str).expect("a name").to_owned();
            fs::read(path).ok().map(|content| (name, content))
        };
        let files: Vec<(String, Vec<u8>)> = files.filter_map(|entry| content(entry.unwrap().path())).collect();
        self.setup.publish(name, &files.iter().map(|(name, content)| (name.as_str(), content)).collect::<Vec<_>>());
        self
    }

    /// Binds the listeners here and hands them over to each scheduler, as a service manager does: connections wait
    /// while there is no scheduler.
    #[must_use]
    pub fn hold_listeners(mut self) -> Self {
        self.setup.held = Some([(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port")));
        self
    }

    /// Gives schedulers an environment variable. With [`Self::hold_listeners`], `WATCHDOG_PID` is the scheduler's own.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.setup.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Puts one of the node's folders, `state` or `cache`, on a separate disk: [`Node::disk`].
    #[must_use]
    pub fn on_disk(mut self, part: &str, bytes: u64, inodes: u64) -> Self {
        self.setup.disk = Some(Disk::new(self.setup.path(part), bytes, inodes));
        self
    }

    /// Runs other programs than this build's.
    #[must_use]
    pub fn programs(mut self, programs: &Programs) -> Self {
        self.setup.programs = Some(programs.folder().to_owned());
        self
    }

    /// Has it serve only what is there below the models folder.
    #[must_use]
    pub fn single(mut self, directory: &str) -> Self {
        self.setup.single = Some(directory.to_owned());
        self
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Panics
    /// When it ends instead, with its log.
    #[must_use]
    pub fn start(self) -> Node {
        let mut node = self.begin();
        node.await_ready();
        node
    }

    /// As [`Self::start`], without waiting.
    #[must_use]
    pub fn begin(self) -> Node {
        self.setup.write_config(&self.config);
        let scheduler = self.setup.spawn(&self.setup.path("log"));
        Node::begun(self.setup, scheduler)
    }

    /// The models folder.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.setup.folder()
    }
}
