//! The daemon's life once privileges are dropped: listeners, signals, the end.
//!
//! SIGTERM and SIGINT drain and stop the models. SIGUSR2 leaves them to a successor. A second signal of either kind
//! while draining ends at once; workers then notice that their scheduler is gone and keep the models.

use crate::args::Directories;
use crate::http::control::Addresses;
use crate::http::listener::{Bounds, serve};
use crate::http::{admin, control, data};
use crate::metrics::Metrics;
use crate::node::{Node, NodeContext};
use crate::startup::Listeners;
use crate::state::StateStore;
use crate::watchdog::Watchdog;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use interprocess::os::unix::uds_local_socket::tokio::Listener as LocalListener;
use omni_config::node::NodeConfig;
use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};

/// Connections to the admin listener and to the control socket, each.
const FEW: usize = 64;
/// After the kernel has refused a connection to the control socket.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// For connections to close after the models have ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What ends the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Drain, stop the models, leave nothing.
    Stop,
    /// Leave the models to a successor.
    HandOver,
}

/// Serves until a signal ends it.
///
/// # Errors
/// The runtime refuses a socket or a signal handler.
pub async fn run(config: NodeConfig, directories: Directories, listeners: Listeners) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hand_over = signal(SignalKind::user_defined2())?;
    let Listeners { data: data_listener, admin: admin_listener, control: control_listener, lock } = listeners;
    let data_listener = TcpListener::from_std(data_listener)?;
    let admin_listener = TcpListener::from_std(admin_listener)?;
    let addresses = Addresses {
        listen: data_listener.local_addr()?.to_string(),
        admin_listen: admin_listener.local_addr()?.to_string(),
    };
    let bounds = |connections| Bounds { connections, header_timeout: config.server.header_timeout };
    let (data_bounds, admin_bounds) = (bounds(config.server.connections as usize), bounds(FEW));
    let budget =
        usize::try_from(config.server.buffered_bytes.bytes()).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
    let watchdog = Watchdog::default();
    watchdog.start()?;
    let metrics = Metrics::default();
    let gpu = crate::gpu::start(&config.gpu, metrics.of_gpus(), watchdog.pulse("the cards"));
    let capacity = crate::capacity::start(&config.capacity, metrics.of_capacity(), watchdog.pulse("the capacity"));
    let (state, lasting) = StateStore::open(&directories.own_state()).map_err(io::Error::other)?;
    let context = Arc::new(NodeContext {
        config,
        started: Instant::now(),
        models_dir: directories.models.clone(),
        runtime_dir: directories.runtime.clone(),
        metrics,
        gpu,
        capacity,
        state,
        watchdog,
        body_budget: Arc::new(Semaphore::new(budget)),
        busy_models: AtomicI64::new(0),
        touched_unix_ms: AtomicU64::new(0),
    });
    context.touch();
    let node = Node::start(Arc::clone(&context), lasting).await;
    let (stop, stopping) = watch::channel(false);
    // Who watches the node is answered while it drains.
    let (end, ended) = watch::channel(false);
    let serving = {
        let node = Arc::clone(&node);
        tokio::spawn(serve(data_listener, data_bounds, stopping, move |request| {
            let node = Arc::clone(&node);
            async move { data::serve(&node, request).await }
        }))
    };
    let admin_node = Arc::clone(&node);
    tokio::spawn(serve(admin_listener, admin_bounds, ended, move |request| {
        let node = Arc::clone(&admin_node);
        async move { admin::serve(&node, request).await }
    }));
    tokio::spawn(serve_control(control_listener, Arc::clone(&node), addresses.clone()));
    announce(&directories.runtime, &addresses)?;
    tracing::info!(listen = addresses.listen, admin = addresses.admin_listen, models = %directories.models.display(), "serving");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]); // no service manager: nobody to tell

    let ending = tokio::select! {
        _ = terminate.recv() => Ending::Stop,
        _ = interrupt.recv() => Ending::Stop,
        _ = hand_over.recv() => Ending::HandOver,
    };
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    let leave = async {
        match ending {
            Ending::Stop => {
                tracing::info!("draining");
                stop.send_replace(true);
                node.shut_down().await;
            }
            Ending::HandOver => {
                tracing::info!("leaving the models to a successor");
                stop.send_replace(true);
            }
        }
        let _ = tokio::time::timeout(LAST_WORDS, serving).await;
        end.send_replace(true);
    };
    tokio::select! {
        () = leave => {}
        _ = terminate.recv() => tracing::warn!("ended in the middle of draining"),
        _ = interrupt.recv() => tracing::warn!("ended in the middle of draining"),
    }
    if ending == Ending::Stop {
        for name in ["node.json", "control.sock", "scheduler.lock"] {
            let _ = std::fs::remove_file(directories.runtime.join(name)); // a successor would replace them
        }
    }
    context.state.settled().await; // before a successor reads it
    drop(lock);
    Ok(())
}

/// Writes `<runtime-dir>/node.json`: who serves where. Written beside and renamed, so that a reader sees all or nothing.
fn announce(runtime: &Path, addresses: &Addresses) -> io::Result<()> {
    let text = serde_json::json!({
        "pid": std::process::id(),
        "listen": addresses.listen,
        "admin_listen": addresses.admin_listen,
    });
    let fresh = runtime.join(".node.json");
    std::fs::write(&fresh, format!("{text}\n"))?;
    std::fs::rename(&fresh, runtime.join("node.json"))
}

async fn serve_control(listener: std::os::unix::net::UnixListener, node: Arc<Node>, addresses: Addresses) {
    use interprocess::local_socket::traits::tokio::Listener as _;
    let listener = match LocalListener::try_from(OwnedFd::from(listener)) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the control socket cannot be served"),
    };
    let room = Arc::new(Semaphore::new(FEW));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok(stream) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await; // no descriptors left, most likely
            continue;
        };
        let (node, addresses) = (Arc::clone(&node), addresses.clone());
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| {
                let (node, addresses) = (Arc::clone(&node), addresses.clone());
                async move { Ok::<_, Infallible>(control::serve(&node, &addresses, request).await) }
            });
            let builder = auto::Builder::new(hyper_util::rt::TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            drop(permit);
        });
    }
}
