//! Construction of the daemon: metrics, actors, the node, listeners.

use super::control::ControlServer;
use super::listener_configs::ListenerConfigs;
use super::{ADMIN_CONNECTIONS, Daemon, HttpServers, Readiness, Sinks, Start, Upgrades};
use crate::announcement::announce;
use crate::args::Directories;
use crate::exposure;
use crate::service::{self, StatusLine};
use crate::single::SingleModelWatch;
use crate::{traces, usage};
use nix::unistd::{getegid, geteuid};
use omni_admin::control::{Addresses, Control};
use omni_admin::control_socket::SocketFile;
use omni_admin::monitoring::{self, AdminApi};
use omni_admin::{Metrics, Page};
use omni_auth::{Owners, Tokens, token_summary};
use omni_body::BodyBudget;
use omni_capacity::CapacityHandle;
use omni_config::node::NodeConfig;
use omni_config::tokens::Token;
use omni_dir::runtime::CONTROL_SOCKET;
use omni_gpu::GpuHandle;
use omni_inference::DataApi;
use omni_inference::Forwarder;
use omni_inference::RunApi;
use omni_ingress::descriptors::{self, ClientShare};
use omni_ingress::tls::{Tls, TlsAcceptor};
use omni_ingress::{InheritedConnections, ListenerPhase, serve};
use omni_jobs_executor::JobsSetup;
use omni_log::Kind;
use omni_store::StateStore;
use omni_supervisor::clock::Clock;
use omni_supervisor::node::{Node, NodeParts};
use omni_takeover::{Inheritance, InheritedSenders};
use omni_task::Watchdog;
use omni_traces::Tracer;
use omni_usage::UsageRecorder;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Listening TCP sockets and their addresses.
struct TcpListeners {
    data: TcpListener,
    admin: TcpListener,
    listen: SocketAddr,
    admin_listen: SocketAddr,
}

/// Parts of the node that can fail or take long, made before the predecessor hands over.
struct Prepared {
    configs: ListenerConfigs,
    started: Instant,
    metrics: Metrics,
    gpu: GpuHandle,
    capacity: CapacityHandle,
    watchdog: Watchdog,
    tokens: Option<Tokens>,
    budget: Arc<BodyBudget>,
}

impl Daemon {
    /// Builds everything, takes over from the predecessor if there is one, and begins to serve.
    pub(super) async fn build(start: Start) -> io::Result<Self> {
        let Start { config, directories, admins, tokens, tls, sinks, listeners, program, predecessor } = start;
        let own_listeners = listeners.try_clone()?; // for a successor; has the lock, too
        drop(listeners.lock);
        let tcp = TcpListeners::new(listeners.data, listeners.admin)?;
        let addresses = tcp.addresses(&config, tokens.is_some(), tls.is_some());
        let config_summary = config_summary(&config, tokens.as_ref(), tls.as_ref());
        let share = descriptors::share(descriptors::limit(), config.server.connections);
        let mut prepared = Prepared::new(&config, tokens, tls.as_ref(), &tcp, share)?;
        let recorders = prepared.recorders(&config, &directories, sinks)?;
        // Steps that can fail come first: from here on the node belongs to this scheduler.
        let inheritance = match predecessor {
            Some(predecessor) => Some(predecessor.take_over(&config_summary).await.map_err(io::Error::other)?),
            None => None,
        };
        let unfinished = inheritance.as_ref().map(|inheritance| inheritance.unfinished.clone());
        let (state, persisted) = StateStore::open(&directories.own_state()).map_err(io::Error::other)?;
        let Prepared { configs, started, mut metrics, gpu, capacity, watchdog, tokens, budget } = prepared;
        let (config, clock, models) = (Arc::new(config), Clock::since(started), directories.models.clone());
        let parts = NodeParts {
            config: Arc::clone(&config),
            clock,
            models: models.clone(),
            runtime_dir: directories.runtime.clone(),
            metrics: metrics.of_node(),
            gpu: gpu.clone(),
            capacity: capacity.clone(),
            store: Arc::new(state),
            watchdog,
            budget: Arc::clone(&budget),
            check: omni_inference::check_content,
        };
        let node = Node::start(parts, persisted, unfinished).await;
        let control_socket = directories.own_runtime().join(CONTROL_SOCKET);
        let forwarder = Forwarder::new(Arc::clone(&node), Arc::clone(&budget), control_socket.clone());
        let (jobs, jobs_handle) = JobsSetup::from_config(&config.jobs, directories.own_state().join("jobs")).unzip();
        jobs_handle.iter().for_each(|handle| metrics.jobs(handle.clone()));
        let run = RunApi::new(Arc::clone(&node), forwarder, Arc::clone(&budget), recorders);
        let run = Arc::new(run.with_jobs(jobs_handle));
        let (senders, data_inherited, admin_inherited) =
            InheritedSenders::new(share.connections, ADMIN_CONNECTIONS as usize);
        let (listen, acceptor) = (tcp.listen, tls.as_ref().map(Tls::acceptor));
        let (sender, receiver) = mpsc::channel(1);
        let owners = Arc::new(Owners { uid: geteuid().as_raw(), gid: getegid().as_raw(), admins });
        let data = Arc::new(DataApi { run: Arc::clone(&run), tokens });
        let jobs = jobs.map(|jobs| jobs.start(Arc::clone(&data)));
        let (upgrades, shown) = (sender.clone(), addresses.clone());
        let control = Control { run, config, models, clock, gpu, budget, addresses: shown, upgrades, owners };
        let page = Page::start(control.clone(), Arc::clone(&data), capacity);
        let admin = AdminApi { node: Arc::clone(&node), gpu: control.gpu.clone(), metrics: Arc::new(metrics), page };
        let inherited = (data_inherited, admin_inherited);
        let http = HttpServers::start((data, admin), tcp, acceptor, configs, inherited, share.connections);
        let file = SocketFile::new(control_socket);
        let control = ControlServer::start(listeners.control, file, control, ADMIN_CONNECTIONS);
        announce(&directories, &addresses)?;
        tracing::info!(
            message_id = Kind::Serving.id(),
            listen = addresses.listen,
            tls = tls.is_some(),
            admin = addresses.admin_listen,
            models = %directories.models.path().display(),
            "serving"
        );
        let single = SingleModelWatch::new(&node);
        let is_ready = notify_readiness(inheritance, (listen, tls.is_some()), &node, senders);
        Ok(Self {
            node,
            directories,
            addresses,
            program,
            config_summary,
            http,
            jobs,
            control,
            listeners: Some(own_listeners),
            upgrades: Upgrades { sender, receiver, reload: JoinSet::new() },
            readiness: Readiness { single, is_ready },
            status_line: StatusLine::default(),
        })
    }
}

/// Notifies the service manager that the node is ready, or has the predecessor do so. Returns whether it is ready: the
/// readiness of a single model is notified when the model is.
fn notify_readiness(
    inheritance: Option<Inheritance>,
    (listen, tls): (SocketAddr, bool),
    node: &Arc<Node>,
    senders: InheritedSenders,
) -> bool {
    match inheritance {
        None => {
            let is_ready = node.single().is_none();
            if is_ready {
                service::ready();
            }
            is_ready
        }
        // The predecessor notifies the service manager that this process is the main one now, and ready.
        Some(inheritance) => {
            let node = Arc::clone(node);
            tokio::spawn(async move { inheritance.follow(listen, tls, &node, senders).await });
            true
        }
    }
}

impl TcpListeners {
    fn new(data: std::net::TcpListener, admin: std::net::TcpListener) -> io::Result<Self> {
        let (data, admin) = (TcpListener::from_std(data)?, TcpListener::from_std(admin)?);
        let (listen, admin_listen) = (data.local_addr()?, admin.local_addr()?);
        Ok(Self { data, admin, listen, admin_listen })
    }

    /// Collects the addresses and warnings about them, and logs the warnings.
    fn addresses(&self, config: &NodeConfig, has_tokens: bool, has_tls: bool) -> Addresses {
        let mut warnings = exposure::warnings(self.listen, has_tokens, has_tls, self.admin_listen);
        warnings.extend(descriptors::shortage(descriptors::limit(), config.server.connections));
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        Addresses { listen: self.listen.to_string(), admin_listen: self.admin_listen.to_string(), warnings }
    }
}

impl Prepared {
    /// Recorders of usage and of spans, whose counts are among the metrics.
    fn recorders(
        &mut self,
        config: &NodeConfig,
        directories: &Directories,
        sinks: Sinks,
    ) -> io::Result<(Arc<UsageRecorder>, Arc<Tracer>)> {
        let usage = usage::open(config, directories, sinks.usage)?;
        let tracer = traces::start(config, sinks.spans)?;
        self.metrics.usage(Arc::clone(&usage));
        self.metrics.traces(Arc::clone(&tracer));
        Ok((usage, tracer))
    }

    fn new(
        config: &NodeConfig,
        tokens: Option<BTreeMap<String, Token>>,
        tls: Option<&Tls>,
        tcp: &TcpListeners,
        ClientShare { connections, uploads }: ClientShare,
    ) -> io::Result<Self> {
        let watchdog = Watchdog::default();
        watchdog.start()?;
        crate::allocator::start();
        let mut metrics = Metrics::default();
        if let Some(expiry) = tls.and_then(Tls::expires_at) {
            metrics.certificate_ends(expiry);
        }
        let budget = BodyBudget::new(config.server.buffered_bytes.bytes(), uploads, metrics.of_bodies());
        let limits = (connections, ADMIN_CONNECTIONS as usize);
        let configs = ListenerConfigs::new(config, limits, (tcp.listen, tcp.admin_listen), &budget, &metrics.of_http());
        let started = Instant::now();
        let heartbeat = watchdog.heartbeat("the capacity");
        let capacity = omni_capacity::start(&config.capacity, metrics.of_capacity(), started, heartbeat);
        let gpu = omni_gpu::start(&config.gpu, capacity.clone(), metrics.of_gpus(), watchdog.heartbeat("the cards"));
        let tokens = tokens.map(|tokens| Tokens::new(tokens, started, &metrics.of_tokens()));
        Ok(Self { configs, started, metrics, gpu, capacity, watchdog, tokens, budget })
    }
}

impl HttpServers {
    fn start(
        (data_api, admin_api): (Arc<DataApi>, AdminApi),
        tcp: TcpListeners,
        tls: Option<TlsAcceptor>,
        configs: ListenerConfigs,
        (data_inherited, admin_inherited): (InheritedConnections, InheritedConnections),
        connections: usize,
    ) -> Self {
        let (data_phase, data_phases) = watch::channel(ListenerPhase::Accepting);
        let (admin_phase, admin_phases) = watch::channel(ListenerPhase::Accepting);
        let mut data = JoinSet::new();
        data.spawn(serve(tcp.data, tls, configs.data, data_phases, data_inherited, move |request| {
            let api = Arc::clone(&data_api);
            async move { api.serve(request).await }
        }));
        let admin_api = Arc::new(admin_api);
        let admin =
            tokio::spawn(serve(tcp.admin, None, configs.admin, admin_phases, admin_inherited, move |request| {
                let api = Arc::clone(&admin_api);
                async move { monitoring::serve(&api, request).await }
            }));
        Self { data_phase, admin_phase, data, admin, connections }
    }
}

/// Configuration for a successor, which compares it with its own: with summaries of the secret files instead of their content.
fn config_summary(config: &NodeConfig, tokens: Option<&BTreeMap<String, Token>>, tls: Option<&Tls>) -> Value {
    let mut summary = serde_json::to_value(config).unwrap_or_default(); // a parsed configuration can be serialised
    if let (Value::Object(all), Some(tokens)) = (&mut summary, tokens) {
        all.insert("tokens".to_owned(), token_summary(tokens));
    }
    if let (Some(Value::Object(files)), Some(tls)) = (summary.get_mut("tls"), tls) {
        files.insert("sha256".to_owned(), tls.summary());
    }
    summary
}
