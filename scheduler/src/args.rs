//! The daemon's command line, and how it, the environment and the configuration file combine.

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
    /// What must last [default: $STATE_DIRECTORY, else /var/lib/omni]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// What can be made again: environments, models' caches [default: $CACHE_DIRECTORY, else /var/cache/omni]
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
    /// Standard input is a socket to the scheduler that this one succeeds: for schedulers, not for people
    #[arg(long, hide = true)]
    pub succeed: bool,
}

/// Where the node keeps its things; absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    /// Model directories.
    pub models: Models,
    /// What must last.
    pub state: PathBuf,
    /// What can be made again.
    pub cache: PathBuf,
    /// Sockets.
    pub runtime: PathBuf,
}

impl Directories {
    /// Sockets and files of the scheduler itself; the rest of the runtime directory is the launcher's.
    #[must_use]
    pub fn own_runtime(&self) -> PathBuf {
        omni_dir::runtime::control(&self.runtime)
    }

    /// What must last of the scheduler itself; the rest is the launcher's.
    #[must_use]
    pub fn own_state(&self) -> PathBuf {
        self.state.join("scheduler")
    }
}

/// The configuration could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is wrong.
    #[error("the configuration file {} is wrong", path.display())]
    Parse {
        /// Which.
        path: PathBuf,
        /// Why.
        source: omni_config::node::NodeConfigError,
    },
    /// The group that may change the node is not known to this machine.
    #[error(transparent)]
    NoGroup(#[from] NoGroup),
    /// The only model's directory has no name for a model.
    #[error(transparent)]
    NoSingleModel(#[from] NoSingleModel),
    /// A relative path cannot be made absolute.
    #[error("cannot resolve {}", path.display())]
    Resolve {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Args {
    /// The file that is read; the launcher reads the same one.
    #[must_use]
    pub fn config_file(&self) -> Option<PathBuf> {
        self.config.clone().or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()))
    }

    /// The configuration: the named file, else the default one if it exists, else the defaults. Addresses from the
    /// command line win.
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

    /// The group, by number and name, that may change the node.
    ///
    /// # Errors
    /// [`ArgsError::NoGroup`].
    pub fn admins(config: &NodeConfig) -> Result<Option<(u32, String)>, ArgsError> {
        Ok(NodeGroup::find(config.node.admin_group.as_ref())?)
    }

    /// The directories: command line, then file, then systemd's variables, then the usual places.
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
