//! The thread that talks to the driver: finds the cards once, then looks every few seconds what is in use on them.
//!
//! A thread of its own, since a stuck driver keeps whoever calls it: nobody waits for this one. It publishes; the GPU
//! task ([`super::task`]) reads, and takes a reading that is too old for what it is. The thread ends with the task, and
//! holds nothing else.

use super::cuda;
use super::nvml::{self, Nvml, NvmlError, Process};
use omni_config::node::{Gpu, GpuDevice, GpuUuid};
use omni_node_protocol::id::InstanceId;
use std::ffi::OsString;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// Between two looks.
pub(super) const EVERY: Duration = Duration::from_secs(2);

/// A card that models may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Card {
    /// As NVML counts.
    pub(super) index: u32,
    /// Identity that survives a restart.
    pub(super) uuid: GpuUuid,
    /// Number of `/dev/nvidia<minor>`.
    pub(super) minor: u32,
    /// The product's.
    pub(super) name: String,
    /// Memory of the card, in bytes.
    pub(super) total_bytes: u64,
    /// Support for moving memory in use; if missing, why.
    pub(super) unified: Result<(), String>,
}

/// Memory in use on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    /// By anybody.
    pub(super) used_bytes: u64,
    /// Each process of an instance, and what the driver gave it, its context too.
    pub(super) owned: Vec<(InstanceId, u64)>,
}

/// Measurement of all cards.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    /// Start of the measurement: what was done earlier is in it.
    pub(super) began: Instant,
    /// In the order of the cards; empty before the first look.
    pub(super) cards: Vec<Result<Seen, NvmlError>>,
}

/// The thread's other end.
#[derive(Debug)]
pub(super) struct Probe {
    /// The cards, once; or why there is none.
    pub(super) cards: oneshot::Receiver<Result<Vec<Card>, String>>,
    /// The newest look.
    pub(super) readings: watch::Receiver<Reading>,
    /// Asks for a look now; one that is asked for already is enough.
    pub(super) look: SyncSender<()>,
}

/// Starts the thread.
pub(super) fn start(config: Gpu) -> Probe {
    let (found, cards) = oneshot::channel();
    let (publish, readings) = watch::channel(Reading { began: Instant::now(), cards: Vec::new() });
    let (look, asked) = sync_channel(1);
    let work = move || match find(&config) {
        Ok((nvml, cards)) => {
            let indices: Vec<u32> = cards.iter().map(|card| card.index).collect();
            if found.send(Ok(cards)).is_ok() {
                watch_cards(&nvml, &indices, &publish, &asked);
            }
        }
        Err(message) => drop(found.send(Err(message))),
    };
    // Without a thread `cards` says that nobody answers.
    if let Err(error) = std::thread::Builder::new().name("gpu-driver".into()).spawn(work) {
        tracing::error!(%error, "no thread for the GPU driver");
    }
    Probe { cards, readings, look }
}

fn watch_cards(nvml: &Nvml, indices: &[u32], publish: &watch::Sender<Reading>, asked: &Receiver<()>) {
    loop {
        let began = Instant::now();
        let cards = indices.iter().map(|index| {
            let nvml::Use { used_bytes, processes } = nvml.read(*index)?;
            Ok(Seen { used_bytes, owned: processes.into_iter().filter_map(owned).collect() })
        });
        let cards = cards.collect();
        publish.send_replace(Reading { began, cards });
        match asked.recv_timeout(EVERY) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The instance that a process belongs to, by the control group that it is in: a model has no say in that.
fn owned(process: Process) -> Option<(InstanceId, u64)> {
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).ok()?;
    instance(&groups).map(|instance| (instance, process.bytes))
}

/// `groups` is the text of `/proc/<pid>/cgroup`; a group of an instance is `…/<id>/model`.
fn instance(groups: &str) -> Option<InstanceId> {
    let segments = groups.lines().flat_map(|line| line.splitn(3, ':').nth(2).unwrap_or_default().split('/'));
    segments.filter_map(|segment| InstanceId::parse(segment).ok()).next()
}

/// The cards that the configuration lets models use, and the library that watches them.
pub(super) fn find(config: &Gpu) -> Result<(Nvml, Vec<Card>), String> {
    let file =
        |name| config.driver_dir.as_deref().map_or_else(|| OsString::from(name), |dir: &Path| dir.join(name).into());
    let nvml = Nvml::open(&file(nvml::LIBRARY)).map_err(|error| format!("no NVIDIA driver can be used: {error}"))?;
    let count = nvml.count().map_err(|error| format!("the driver does not say what cards there are: {error}"))?;
    let access = cuda::concurrent_managed_access(&file(cuda::LIBRARY));
    let mut cards = Vec::new();
    for index in 0..count {
        let identity = match nvml.identity(index) {
            Ok(identity) => identity,
            Err(error) => {
                tracing::warn!(gpu = index, %error, "a card cannot be used");
                continue;
            }
        };
        let unified = match &access {
            Err(error) => Err(format!("{} cannot be asked: {error}", cuda::LIBRARY)),
            Ok(access) => match access.get(identity.uuid.as_str()) {
                Some(true) => Ok(()),
                Some(false) => Err("it has no concurrent managed access".to_owned()),
                None => Err(format!("{} does not show it to the scheduler", cuda::LIBRARY)),
            },
        };
        let nvml::Identity { uuid, minor, name, total_bytes } = identity;
        cards.push(Card { index, uuid, minor, name, total_bytes, unified });
    }
    chosen(cards, &config.devices).map(|cards| (nvml, cards))
}

/// The cards that the configuration names; all of them when it names none.
fn chosen(cards: Vec<Card>, devices: &[GpuDevice]) -> Result<Vec<Card>, String> {
    let is = |card: &Card, device: &GpuDevice| match device {
        GpuDevice::Index(index) => card.index == *index,
        GpuDevice::Uuid(uuid) => card.uuid == *uuid,
    };
    if cards.is_empty() {
        return Err("the driver sees no card that can be used".to_owned());
    }
    for device in devices.iter().filter(|device| !cards.iter().any(|card| is(card, device))) {
        let named = match device {
            GpuDevice::Index(index) => index.to_string(),
            GpuDevice::Uuid(uuid) => uuid.to_string(),
        };
        // A node with eight cards of which one is broken serves on with seven.
        tracing::warn!(device = named, "`devices` in [gpu] names a card that is not here");
    }
    let named = |card: &Card| devices.is_empty() || devices.iter().any(|device| is(card, device));
    let cards: Vec<Card> = cards.into_iter().filter(named).collect();
    if cards.is_empty() { Err("none of the cards that `devices` in [gpu] names is here".to_owned()) } else { Ok(cards) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(index: u32) -> Card {
        let uuid = format!("GPU-00000000-0000-0000-0000-00000000000{index}").parse().unwrap();
        Card { index, uuid, minor: index, name: "x".into(), total_bytes: 1 << 30, unified: Ok(()) }
    }

    #[test]
    fn the_configuration_names_cards() {
        let indices = |devices: &[GpuDevice]| {
            let cards = chosen(vec![card(0), card(1), card(2)], devices)?;
            Ok(cards.into_iter().map(|card| card.index).collect::<Vec<_>>())
        };
        assert_eq!(indices(&[]), Ok(vec![0, 1, 2]));
        assert_eq!(indices(&[GpuDevice::Uuid(card(2).uuid), GpuDevice::Index(0)]), Ok(vec![0, 2]));
        assert_eq!(indices(&[GpuDevice::Index(1), GpuDevice::Index(7)]), Ok(vec![1]));
        let none: Result<Vec<u32>, String> = indices(&[GpuDevice::Index(7)]);
        assert!(none.unwrap_err().contains("[gpu]"));
        assert!(chosen(vec![], &[]).is_err());
    }

    #[test]
    fn a_process_belongs_to_the_instance_of_its_control_group() {
        for (groups, owner) in [
            ("0::/omni/0123456789ab/model\n", Some("0123456789ab")),
            ("5:memory:/omni/0123456789ab/model\n0::/\n", Some("0123456789ab")),
            ("0::/user.slice/session-1.scope\n", None),
            ("", None),
        ] {
            assert_eq!(instance(groups).as_ref().map(InstanceId::as_str), owner, "{groups}");
        }
    }

    #[tokio::test]
    async fn a_machine_without_a_driver_says_so() {
        let nowhere = Gpu { driver_dir: Some("/nonexistent".into()), ..Gpu::default() };
        let message = start(nowhere).cards.await.unwrap().unwrap_err();
        assert!(message.contains("libnvidia-ml.so.1"), "{message}");
    }
}
