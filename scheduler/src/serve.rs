//! The daemon's life once privileges are dropped: listeners, signals, the end.
//!
//! SIGTERM and SIGINT drain and stop the models. SIGUSR2 finishes what is in flight and leaves them to who is started
//! next. `omnictl upgrade` and SIGHUP have a successor take over while both run ([`crate::takeover`]); on a terminal SIGHUP
//! is the terminal's end, and the node's. A stop in the moment in which the models change hands is passed on to who gets
//! them. A second SIGTERM or SIGINT while draining kills all models, or ends at once where they go on. A
//! single model's failure drains and stops as SIGTERM does, and is in the exit code.

use crate::announcement::{announce, withdraw};
use crate::args::Directories;
use crate::control_socket;
use crate::exposure::exposure;
use crate::front::Front;
use crate::http::control::{Addresses, Control};
use crate::http::{admin, data};
use crate::metrics::Metrics;
use crate::node::{Held, Node, NodeContext};
use crate::policy::single::Fault;
use crate::service::{self, Service};
use crate::single::{News, Single};
use crate::startup::Listeners;
use crate::takeover::{self, Answer, Estate, Handed, Predecessor, hand_over};
use crate::watchdog::Watchdog;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getegid, geteuid};
use omni_auth::{Owners, Tokens, token_summary};
use omni_body::BodyBudget;
use omni_config::node::NodeConfig;
use omni_config::tokens::Token;
use omni_ingress::descriptors::{self, Share};
use omni_ingress::tls::Tls;
use omni_ingress::{Phase, serve};
use omni_log::Kind;
use omni_store::StateStore;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Connections to the admin listener, and to the control socket of who may look and of who may do more, each.
const FEW: u32 = 64;
/// For connections to close after the models have ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What ends the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Drain, stop the models, leave nothing.
    Stop,
    /// Leave the models to who comes next.
    Leave,
    /// A successor has taken over.
    Succeeded,
    /// As `Stop`: the only model has failed.
    Fault(Fault),
}

/// What the daemon starts with.
#[derive(Debug)]
pub struct Start {
    /// The node's configuration.
    pub config: NodeConfig,
    /// Where the node keeps its things.
    pub directories: Directories,
    /// The group, by number and name, that may change the node.
    pub admins: Option<(u32, String)>,
    /// The tokens of the data listener, by name; `None`: it wants none.
    pub tokens: Option<BTreeMap<String, Token>>,
    /// What the data listener shows to clients; `None`: it speaks plain HTTP.
    pub tls: Option<Tls>,
    /// What listens.
    pub listeners: Listeners,
    /// The program of a successor: the path of this one.
    pub program: PathBuf,
    /// The scheduler that serves until this one does.
    pub predecessor: Option<Predecessor>,
}

/// Serves until a signal ends it, a successor has taken over, or the only model has failed: its fault.
///
/// # Errors
/// The runtime refuses a socket or a signal handler; a takeover has failed half-way.
pub async fn run(start: Start) -> io::Result<Option<Fault>> {
    let Start { config, directories, admins, tokens, tls, listeners, program, predecessor } = start;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut leave = signal(SignalKind::user_defined2())?;
    let mut reload = signal(SignalKind::hangup())?;
    let mut handed = Some(listeners.try_clone()?); // for a successor; also keeps the lock
    drop(listeners.lock);
    let data_listener = TcpListener::from_std(listeners.data)?;
    let admin_listener = TcpListener::from_std(listeners.admin)?;
    let listen = data_listener.local_addr()?;
    let admin_listen = admin_listener.local_addr()?;
    let mut warnings = exposure(listen, tokens.is_some(), tls.is_some(), admin_listen);
    warnings.extend(descriptors::shortage(descriptors::limit(), config.server.connections));
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let addresses = Addresses { listen: listen.to_string(), admin_listen: admin_listen.to_string(), warnings };
    let watchdog = Watchdog::default();
    watchdog.start()?;
    crate::allocator::start();
    let mut metrics = Metrics::default();
    if let Some(end) = tls.as_ref().and_then(Tls::ends) {
        metrics.certificate_ends(end);
    }
    let Share { connections, uploads } = descriptors::share(descriptors::limit(), config.server.connections);
    let budget = BodyBudget::new(config.server.buffered_bytes.bytes(), uploads, metrics.of_bodies());
    let bounds = (connections, FEW as usize);
    let front = Front::new(&config, bounds, (listen, admin_listen), &budget, &metrics.of_http());
    let started = Instant::now();
    let pulse = watchdog.pulse("the capacity");
    let capacity = crate::capacity::start(&config.capacity, metrics.of_capacity(), started, pulse);
    let gpu = crate::gpu::start(&config.gpu, capacity.clone(), metrics.of_gpus(), watchdog.pulse("the cards"));
    let told = told(&config, tokens.as_ref(), tls.as_ref());
    let acceptor = tls.as_ref().map(Tls::acceptor);
    let tokens = tokens.map(|tokens| Tokens::new(tokens, started, &metrics.of_tokens()));
    // All that can be in the way was: from here on the node is this scheduler's.
    let inheritance = match predecessor {
        Some(predecessor) => Some(predecessor.relieve(&told).await.map_err(io::Error::other)?),
        None => None,
    };
    let before = inheritance.as_ref().map(|inheritance| inheritance.working.clone());
    let (state, lasting) = StateStore::open(&directories.own_state()).map_err(io::Error::other)?;
    let context = Arc::new(NodeContext {
        config,
        started,
        models: directories.models.clone(),
        runtime_dir: directories.runtime.clone(),
        metrics,
        gpu,
        capacity,
        state,
        watchdog,
        tokens,
        budget,
        busy_models: AtomicI64::new(0),
        touched_unix_ms: AtomicU64::new(0),
    });
    context.touch();
    let node = Node::start(Arc::clone(&context), lasting, before).await;
    let (data_phase, data_phases) = watch::channel(Phase::Open);
    // Who watches the node is answered while it drains.
    let (admin_phase, admin_phases) = watch::channel(Phase::Open);
    let (from_before, inherited, inherited_admin) = Handed::new(connections, FEW as usize);
    let mut serving = JoinSet::new();
    let data_node = Arc::clone(&node);
    serving.spawn(serve(data_listener, acceptor, front.data, data_phases, inherited, move |request| {
        let node = Arc::clone(&data_node);
        async move { data::serve(&node, request).await }
    }));
    let admin_node = Arc::clone(&node);
    let watched =
        tokio::spawn(serve(admin_listener, None, front.admin, admin_phases, inherited_admin, move |request| {
            let node = Arc::clone(&admin_node);
            async move { admin::serve(&node, request).await }
        }));
    let (upgrades, mut upgrade) = mpsc::channel(1);
    let speaking = control_socket::Room::new(FEW);
    let owners = Arc::new(Owners { uid: geteuid().as_raw(), gid: getegid().as_raw(), admins });
    let control = Control { node: Arc::clone(&node), addresses: addresses.clone(), upgrades: upgrades.clone(), owners };
    let serve_control = |socket| tokio::spawn(control_socket::serve(socket, speaking.clone(), control.clone()));
    let mut control_file = control_socket::Watched::new(directories.own_runtime().join(control_socket::NAME));
    let mut control_task = serve_control(listeners.control);
    let mut looks = tokio::time::interval(control_socket::LOOK);
    announce(&directories, &addresses)?;
    tracing::info!(
        message_id = Kind::Serving.id(),
        listen = addresses.listen,
        tls = tls.is_some(),
        admin = addresses.admin_listen,
        models = %directories.models.path().display(),
        "serving"
    );
    let mut single = Single::of(&node);
    // A single model says when.
    let mut is_ready = context.models.single().is_none();
    match inheritance {
        None if is_ready => service::ready(),
        None => {}
        // The one before says to the service manager that this is its main process now, and ready.
        Some(inheritance) => {
            is_ready = true;
            let node = Arc::clone(&node);
            tokio::spawn(async move { inheritance.follow(listen, tls.is_some(), &node, from_before).await });
        }
    }
    let mut service = Service::default();
    let mut reloads = JoinSet::new();

    let ending = loop {
        tokio::select! {
            _ = terminate.recv() => break Ending::Stop,
            _ = interrupt.recv() => break Ending::Stop,
            _ = leave.recv() => break Ending::Leave,
            news = single.news() => match news {
                News::Ready if is_ready => {}
                News::Ready => {
                    is_ready = true;
                    service::ready();
                }
                News::Fault(fault) => break Ending::Fault(fault),
            },
            _ = reload.recv() => {
                if io::stderr().is_terminal() {
                    break Ending::Stop;
                }
                service::reloading();
                if reloads.is_empty() {
                    let (node, upgrades) = (Arc::clone(&node), upgrades.clone());
                    reloads.spawn(async move { takeover::ask(&node, &upgrades).await.map(drop) });
                }
            }
            Some(asked) = reloads.join_next() => {
                if let Ok(Err(why)) = asked {
                    tracing::error!("no reload: {why}");
                    if is_ready {
                        service::ready();
                    }
                }
            }
            _ = looks.tick() => {
                service.status(&addresses.listen, &node);
                let Some([fresh, also]) = control_file.mend() else { continue };
                if let Some(handed) = &mut handed {
                    handed.control = also;
                }
                control_task.abort();
                control_task = serve_control(fresh);
            }
            Some(answer) = upgrade.recv() => {
                let answer: Answer = answer;
                let listeners = match handed.as_ref().map(Listeners::try_clone) {
                    Some(Ok(listeners)) => listeners,
                    None => continue, // another scheduler has them
                    Some(Err(error)) => {
                        let error = format!("no takeover: the listening sockets cannot be handed on: {error}");
                        tracing::error!("{error}");
                        service::ready();
                        let _ = answer.send(Err(error));
                        continue;
                    }
                };
                let estate = Estate {
                    node: &node,
                    config: &told,
                    listeners,
                    data: &data_phase,
                    admin: &admin_phase,
                    connections,
                };
                let answered = async {
                    while serving.join_next().await.is_some() {}
                    speaking.close().await;
                };
                let to_stop = AtomicBool::new(false);
                let unheard = Arc::new(AtomicU32::new(0));
                let handed_over = hand_over(&program, estate, answered, |said| {
                    match &said {
                        Ok(by) => {
                            if to_stop.load(Ordering::Relaxed) {
                                stop(by.pid);
                            }
                            tell_of(by.pid, &unheard);
                            control_task.abort(); // who asks from now on asks the successor
                            upgrade.close();
                            while let Ok(late) = upgrade.try_recv() {
                                let _ = late.send(Err(takeover::ALREADY.to_owned()));
                            }
                            // They are the successor's alone: without it, somebody else can be started.
                            handed = None;
                        }
                        Err(_) => service::ready(),
                    }
                    let _ = answer.send(said); // or nobody waits for it
                });
                let mut handed_over = pin!(handed_over);
                let ending = loop {
                    tokio::select! {
                        done = &mut handed_over => break done.map_err(io::Error::other)?.then_some(Ending::Succeeded),
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                    }
                    match node.held() {
                        Held::Here => break Some(Ending::Stop),
                        Held::Nowhere => {
                            tracing::info!("the models change hands: who gets them is told to stop");
                            to_stop.store(true, Ordering::Relaxed);
                        }
                        Held::Elsewhere => match unheard.load(Ordering::Relaxed) {
                            0 => break Some(Ending::Succeeded),
                            successor => stop(successor),
                        },
                    }
                };
                if let Some(ending) = ending {
                    break ending;
                }
            }
        }
    };
    control_task.abort();
    // A socket is closed to clients with its last descriptor.
    let lock = handed.map(|Listeners { lock, data: _, admin: _, control: _ }| lock);
    if ending != Ending::Succeeded {
        service::stopping();
    }
    let finish = async {
        data_phase.send_replace(Phase::Close);
        let limit = match ending {
            Ending::Stop | Ending::Fault(_) => {
                tracing::info!(message_id = Kind::Draining.id(), "draining");
                node.shut_down().await;
                LAST_WORDS
            }
            Ending::Leave => {
                tracing::info!("leaving the models to the next scheduler");
                node.longest_drain() + LAST_WORDS
            }
            Ending::Succeeded => LAST_WORDS,
        };
        let _ = tokio::time::timeout(limit, async { while serving.join_next().await.is_some() {} }).await;
        admin_phase.send_replace(Phase::Close);
        if ending == Ending::Succeeded {
            let _ = tokio::time::timeout(LAST_WORDS, watched).await;
        }
    };
    let all_end = matches!(ending, Ending::Stop | Ending::Fault(_));
    let told_again = tokio::select! {
        () = finish => false,
        _ = terminate.recv() => true,
        _ = interrupt.recv() => true,
    };
    if told_again && all_end {
        tracing::warn!("told again to end: all models are killed, with what they have in flight");
        node.end_now().await;
    } else if told_again {
        tracing::warn!("ended in the middle of draining; the models go on");
    }
    if all_end {
        withdraw(&directories);
    }
    context.state.flush().await; // before the next one reads it
    drop(lock);
    Ok(match ending {
        Ending::Fault(fault) => Some(fault),
        Ending::Stop | Ending::Leave | Ending::Succeeded => None,
    })
}

/// What the next scheduler compares with its own: the configuration, and of the files that it names what may be told.
fn told(config: &NodeConfig, tokens: Option<&BTreeMap<String, Token>>, tls: Option<&Tls>) -> Value {
    let mut told = serde_json::to_value(config).unwrap_or_default(); // what was read can be written
    if let (Value::Object(all), Some(tokens)) = (&mut told, tokens) {
        all.insert("tokens".to_owned(), token_summary(tokens));
    }
    if let (Some(Value::Object(files)), Some(tls)) = (told.get_mut("tls"), tls) {
        files.insert("sha256".to_owned(), tls.told());
    }
    told
}

/// The service manager stops the service by its main process, which is this one until it has heard of the successor;
/// `unheard` is that one's number for as long.
fn tell_of(successor: u32, unheard: &Arc<AtomicU32>) {
    if service::is_managed() {
        unheard.store(successor, Ordering::Relaxed);
        let unheard = Arc::clone(unheard);
        tokio::spawn(async move {
            service::is_heard().await;
            unheard.store(0, Ordering::Relaxed);
        });
    }
}

/// Has the scheduler that has taken over do what this one was asked for meanwhile: stop, and all models with it.
fn stop(successor: u32) {
    let told = kill(Pid::from_raw(successor.cast_signed()), Signal::SIGTERM);
    if let Err(errno) = told {
        tracing::warn!(%errno, "the successor cannot be told to stop");
    }
}
