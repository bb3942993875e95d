//! Command line of the daemon, combined with the environment and the configuration file.

use clap::Parser;
use omni_config::node::{DEFAULT_FILE, NoGroup, NodeConfig, NodeGroup};
use omni_config::{Models, NoSingleModel, SingleModel};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Serves the models of one folder over HTTP, or a single one.
#[derive(Debug, Parser)]
#[command(name = "omni-scheduler", version)]
pub struct Args {
    /// Configuration file of the node [default: /etc/omni/omni.toml when it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder of the model directories [default: /srv/models]
    #[arg(long, value_name = "DIR")]
    pub models: Option<PathBuf>,
    /// Serve only the model in this directory: it is kept running, and when it fails this service ends
    #[arg(long, value_name = "DIR", conflicts_with = "models")]
    pub model: Option<PathBuf>,
    /// Persistent state [default: $STATE_DIRECTORY, else /var/lib/omni]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Data that can be rebuilt: environments, models' caches [default: $CACHE_DIRECTORY, else /var/cache/omni]
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Sockets [default: $RUNTIME_DIRECTORY, else /run/omni]
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Address of the data listener [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Address of the admin listener [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<SocketAddr>,
    /// Check the configuration and exit
    #[arg(long)]
    pub check_config: bool,
    /// Print what GPUs models could use, and which listeners are open, as JSON, and exit; `omnictl doctor` explains it
    #[arg(long)]
    pub probe: bool,
    /// Take over from the scheduler at the other end of standard input; only a scheduler uses this
    #[arg(long, hide = true)]
    pub succeed: bool,
}

/// Directories of the node, as absolute paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    /// Model directories.
    pub models: Models,
    /// Persistent state.
    pub state: PathBuf,
    /// Data that can be rebuilt.
    pub cache: PathBuf,
    /// Sockets.
    pub runtime: PathBuf,
}

impl Directories {
    /// Folder of the scheduler's sockets and files. The rest of the runtime directory belongs to the launcher.
    #[must_use]
    pub fn own_runtime(&self) -> PathBuf {
        omni_dir::runtime::control(&self.runtime)
    }

    /// Folder of the scheduler's persistent state. The rest of the state directory belongs to the launcher.
    #[must_use]
    pub fn own_state(&self) -> PathBuf {
        self.state.join("scheduler")
    }
}

/// Configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// Unreadable file.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// File with errors.
    #[error("the configuration file {} is wrong", path.display())]
    Parse {
        /// The path.
        path: PathBuf,
        /// Cause.
        source: omni_config::node::NodeConfigError,
    },
    /// Unknown group of administrators.
    #[error(transparent)]
    NoGroup(#[from] NoGroup),
    /// Directory of the single model without a valid name.
    #[error(transparent)]
    NoSingleModel(#[from] NoSingleModel),
    /// Relative path that cannot be made absolute.
    #[error("cannot resolve {}", path.display())]
    Resolve {
        /// The path.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}

impl Args {
    /// Path of the configuration file, which the launcher reads, too.
    #[must_use]
    pub fn config_file(&self) -> Option<PathBuf> {
        self.config.clone().or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()))
    }

    /// Reads the configuration: the named file, else the default file if it exists, else the defaults. Addresses on the command line take
    /// precedence.
    ///
    /// # Errors
    /// See [`ArgsError`].
    pub fn node_config(&self) -> Result<NodeConfig, ArgsError> {
        let mut config = match self.config_file() {
            None => NodeConfig::default(),
            Some(path) => {
                let text =
                    std::fs::read_to_string(&path).map_err(|source| ArgsError::Read { path: path.clone(), source })?;
                NodeConfig::parse(&text).map_err(|source| ArgsError::Parse { path, source })?
            }
        };
        config.server.listen = self.listen.unwrap_or(config.server.listen);
        config.server.admin_listen = self.admin_listen.unwrap_or(config.server.admin_listen);
        Ok(config)
    }

    /// Finds the group that may change the node: its number and name.
    ///
    /// # Errors
    /// [`ArgsError::NoGroup`].
    pub fn admins(config: &NodeConfig) -> Result<Option<(u32, String)>, ArgsError> {
        Ok(NodeGroup::find(config.node.admin_group.as_ref())?)
    }

    /// Resolves the directories from the command line, the file, systemd's variables, or the defaults, in this order.
    ///
    /// # Errors
    /// [`ArgsError::Resolve`], [`ArgsError::NoSingleModel`].
    pub fn directories(&self, config: &NodeConfig) -> Result<Directories, ArgsError> {
        let choose = |flag: &Option<PathBuf>, file: &Option<PathBuf>, variable: &str, usual: &str| {
            let path = flag
                .clone()
                .or_else(|| file.clone())
                .or_else(|| std::env::var_os(variable).map(PathBuf::from))
                .unwrap_or_else(|| PathBuf::from(usual));
            absolute(&path)
        };
        let node = &config.node;
        let models = match &self.model {
            Some(dir) => Models::Single(SingleModel::new(absolute(dir)?)?),
            None => Models::Folder(choose(&self.models, &node.models, "OMNI_MODELS", "/srv/models")?),
        };
        Ok(Directories {
            models,
            state: choose(&self.state_dir, &node.state_dir, "STATE_DIRECTORY", "/var/lib/omni")?,
            cache: choose(&self.cache_dir, &node.cache_dir, "CACHE_DIRECTORY", "/var/cache/omni")?,
            runtime: choose(&self.runtime_dir, &node.runtime_dir, "RUNTIME_DIRECTORY", "/run/omni")?,
        })
    }
}

fn absolute(path: &Path) -> Result<PathBuf, ArgsError> {
    std::path::absolute(path).map_err(|source| ArgsError::Resolve { path: path.to_owned(), source })
}
