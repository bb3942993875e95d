//! The instances of a model, each from the moment it was asked for until all of it is gone.
//!
//! The model's task owns the map and what is in it. Few instances are looked for in many ways: by number for the
//! policies, by id for the words of launcher and workers, by key for those of the GPU task and of the capacity.

use super::gpu::GpuLease;
use super::health::Health;
use crate::model::content::Content;
use crate::model::worker_link::WorkerLink;
use omni_capacity::Reservation;
use omni_engine_client::DataConnection;
use omni_engine_protocol::control::HandlerMode;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::Stats;
use omni_policy::dispatch::StuckHandlers;
use omni_policy::intake::Intake;
use omni_policy::{Generation, InstanceNumber, Moment};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use std::time::Instant;
use tokio::sync::mpsc;

/// An instance of the model.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) id: InstanceId,
    pub(super) generation: Generation,
    /// What it runs.
    pub(super) content: Arc<Content>,
    /// Its version, for answers.
    pub(super) version: Arc<str>,
    pub(super) asked_at: Instant,
    pub(super) pid: Option<i32>,
    pub(super) link: Option<WorkerLink>,
    /// The version of its worker's protocol, when that is older than this scheduler's.
    pub(super) old_protocol: Option<u32>,
    pub(super) connection: Option<DataConnection>,
    /// What it has sent of late.
    pub(super) intake: Intake,
    pub(super) mode: Option<HandlerMode>,
    pub(super) log_seen: u64,
    /// Its GPU memory; `None` for a model without, and before it asked.
    pub(super) lease: Option<GpuLease>,
    /// Its share of the node; `None` before it asked for one. Dropped after its place on a card: news of room are told then.
    pub(super) reservation: Option<Reservation>,
    /// The launcher was asked to start it, or an earlier scheduler was: there may be processes.
    pub(super) launched: bool,
    /// Its worker was told to kill it. One that has to be told again does not hear.
    pub(super) killed: bool,
    /// The launcher has said how it ended; what the worker said before that is being read.
    pub(super) ended: Option<ExitCause>,
    pub(super) health: Health,
    /// Its engine has said why it cannot work, and is about to end.
    pub(super) failed: bool,
    /// Why it is of no use any more: in a word for the metrics, and for people.
    pub(super) given_up: Option<(&'static str, String)>,
    /// Which other model's instance needs its place, for people.
    pub(super) displaced_by: Option<String>,
    /// When its worker was connected.
    pub(super) linked_at: Option<Instant>,
    /// A cancelled handler that runs on is written off then.
    pub(super) grace_ends: Option<Instant>,
    /// What its stuck handlers leave of it, as the fleet was told.
    pub(super) stuck: Option<StuckHandlers>,
    /// The data connection is broken; an engine that lives on then is killed.
    pub(super) broken_ends: Option<Instant>,
    /// Requests of the scheduler before this one that it has still.
    pub(super) elsewhere: u32,
    /// In a scheduler that leaves: requests that it has, as the one after it was told last.
    pub(super) told: u32,
    /// Whether it takes requests.
    pub(super) open: bool,
    /// Whether it was said to have something to do.
    pub(super) busy: bool,
    /// Requests that run on it, for who looks.
    pub(super) in_flight: Arc<AtomicU64>,
    /// Who asked what it uses.
    pub(super) stats_waiters: Vec<mpsc::Sender<Stats>>,
}

impl Instance {
    /// An instance of which only the id and the content are known.
    pub(super) fn new(id: InstanceId, generation: Generation, content: Arc<Content>) -> Self {
        Self {
            id,
            generation,
            version: content.short_version().into(),
            content,
            asked_at: Instant::now(),
            pid: None,
            link: None,
            old_protocol: None,
            connection: None,
            intake: Intake::default(),
            mode: None,
            log_seen: 0,
            reservation: None,
            lease: None,
            launched: false,
            killed: false,
            ended: None,
            health: Health::default(),
            failed: false,
            given_up: None,
            displaced_by: None,
            linked_at: None,
            grace_ends: None,
            stuck: None,
            broken_ends: None,
            elsewhere: 0,
            told: 0,
            open: false,
            busy: false,
            in_flight: Arc::default(),
            stats_waiters: Vec::new(),
        }
    }

    /// Whether a request can be sent at this moment.
    pub(super) fn may_send(&self) -> bool {
        // An engine that serves one request at a time serves the scheduler before this one first.
        let serves_both = self.mode == Some(HandlerMode::Concurrent) && self.content.manifest.scaling.concurrency > 1;
        let is_taken = self.elsewhere > 0 && !serves_both;
        let is_free = !is_taken && !self.health.is_asked();
        self.connection.is_some() && is_free && self.lease.as_ref().is_none_or(GpuLease::is_open)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Instances {
    by_number: BTreeMap<InstanceNumber, Instance>,
}

impl Instances {
    pub(super) fn insert(&mut self, number: InstanceNumber, instance: Instance) {
        self.by_number.insert(number, instance);
    }

    pub(super) fn remove(&mut self, number: InstanceNumber) -> Option<Instance> {
        self.by_number.remove(&number)
    }

    pub(super) fn get(&self, number: InstanceNumber) -> Option<&Instance> {
        self.by_number.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: InstanceNumber) -> Option<&mut Instance> {
        self.by_number.get_mut(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (InstanceNumber, &Instance)> {
        self.by_number.iter().map(|(number, instance)| (*number, instance))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Instance> {
        self.by_number.values_mut()
    }

    /// The first one after `last`, in the order of their numbers: a walk during which instances may come and go.
    pub(super) fn next(&self, last: Option<InstanceNumber>) -> Option<InstanceNumber> {
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_number.range((after, Bound::Unbounded)).next().map(|(number, _)| *number)
    }

    /// The one that launcher and worker mean.
    pub(super) fn find(&self, id: &InstanceId) -> Option<InstanceNumber> {
        self.number(|instance| instance.id == *id)
    }

    /// The first for which this is so.
    pub(super) fn number(&self, is_it: impl Fn(&Instance) -> bool) -> Option<InstanceNumber> {
        self.iter().find(|(_, instance)| is_it(instance)).map(|(number, _)| number)
    }

    /// The earliest moment at which one is not waited for any longer.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.by_number.values().flat_map(|instance| [instance.grace_ends, instance.broken_ends]).flatten().min()
    }

    /// The earliest moment at which one is to be asked whether it lives, or may be read again.
    pub(super) fn look_at(&self, now: Moment) -> Option<Moment> {
        let moments = |instance: &Instance| [instance.health.wake_at(), instance.intake.resumes_at(now)];
        self.by_number.values().flat_map(moments).flatten().min()
    }

    /// Waits until one of the data connections has something to do.
    pub(super) async fn ready(&self, now: Moment) {
        poll_fn(|context| {
            let mut any = Poll::Pending;
            for instance in self.by_number.values() {
                let Some(connection) = &instance.connection else { continue };
                // All are asked, so that each of them wakes the task.
                if connection.poll_ready(context, instance.intake.resumes_at(now).is_none()).is_ready() {
                    any = Poll::Ready(());
                }
            }
            any
        })
        .await;
    }
}
