//! GPU task between simulated models and a simulated driver, on a simulated clock.

mod polling;

use super::*;
use crate::metrics::GpuMetrics;
use crate::probe::Seen;
use crate::queue::{self, GpuHandle, Placement};
use omni_capacity::CapacityMetrics;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{GpuUsage, ResidencyCommand};
use omni_policy::capacity::{ReservationId, StartReason};
use omni_task::Mailbox;
use omni_task::Watchdog;
use prometheus_client::registry::Registry;
use std::collections::HashSet;
use std::sync::mpsc::Receiver;
use tokio::sync::{mpsc, oneshot};

pub(super) const GIB: u64 = 1 << 30;

/// A node with cards of 10 GiB, of which models may have all.
pub(super) struct World {
    handle: GpuHandle,
    pub(super) driver: watch::Sender<Reading>,
    looks: Receiver<()>,
    registry: Registry,
    cards: usize,
}

fn card(index: u32) -> Card {
    let uuid = format!("GPU-00000000-0000-0000-0000-00000000000{index}").parse().unwrap();
    Card { index, uuid, minor: index + 4, name: "Test".into(), total_bytes: 10 * GIB, unified: Ok(()) }
}

impl World {
    pub(super) fn new(cards: u32) -> Self {
        Self::with((0..cards).map(card).collect::<Vec<_>>())
    }

    fn with(cards: Vec<Card>) -> Self {
        Self::found(Ok(cards))
    }

    fn found(cards: Result<Vec<Card>, String>) -> Self {
        let (sender, found) = oneshot::channel();
        let count = cards.as_ref().map_or(0, Vec::len);
        sender.send(cards).unwrap();
        let (driver, readings) = watch::channel(Reading { began: std::time::Instant::now(), cards: Vec::new() });
        let (look, looks) = std::sync::mpsc::sync_channel(1);
        let config = Gpu {
            memory_budget: Some(omni_config::size::ByteSize::from_gib(10)),
            host_budget: Some(omni_config::size::ByteSize::from_gib(100)),
            ..Gpu::default()
        };
        let mut registry = Registry::with_prefix("omni");
        let metrics = GpuMetrics::register(&mut registry);
        let (handle, receiver) = queue::new();
        let probe = Probe { cards: found, readings, look };
        let rooms = (capacity(), metrics);
        tokio::spawn(run(config, probe, receiver, rooms, Watchdog::default().heartbeat("cards")));
        Self { handle, driver, looks, registry, cards: count }
    }

    pub(super) fn model(&self, name: &str, gib: u64) -> Played {
        self.model_in(name, gib, GpuMode::Unified)
    }

    fn model_in(&self, name: &str, gib: u64, mode: GpuMode) -> Played {
        let (request, inbox) = request(name, gib, mode);
        let instance = request.instance.clone();
        Played { reservation: self.handle.place(request), inbox, instance, usage: GpuUsage::default(), card: None }
    }

    fn adopted(&self, name: &str, gib: u64, uuid: &str) -> Played {
        let (request, inbox) = request(name, gib, GpuMode::Unified);
        let instance = request.instance.clone();
        let usage = GpuUsage { managed_bytes: gib * GIB, resident_bytes: gib * GIB, ..GpuUsage::default() };
        Played { reservation: self.handle.adopt(request, uuid, true), inbox, instance, usage, card: None }
    }

    /// The driver looks, and sees this on the first card.
    fn sees(&self, owned: Vec<(InstanceId, u64)>) {
        let used_bytes = owned.iter().map(|(_, bytes)| bytes).sum();
        let nothing = Seen { used_bytes: 0, owned: Vec::new() };
        let mut cards = vec![Ok(nothing); self.cards];
        cards[0] = Ok(Seen { used_bytes, owned });
        self.looked(cards);
    }

    fn looked(&self, cards: Vec<Result<Seen, NvmlError>>) {
        self.driver.send_replace(Reading { began: std::time::Instant::now(), cards });
    }

    /// All metrics as text.
    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    fn metric(&self, name: &str) -> String {
        let text = self.metrics();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
        line.unwrap_or_default()
    }
}

/// Capacity without a bound, and without reservations.
fn capacity() -> CapacityHandle {
    let (metrics, heartbeat) = (CapacityMetrics::default(), Watchdog::default().heartbeat("capacity"));
    omni_capacity::start(&omni_config::node::Capacity::default(), metrics, std::time::Instant::now(), heartbeat)
}

fn request(name: &str, gib: u64, mode: GpuMode) -> (PlacementRequest, mpsc::Receiver<(InstanceKey, Decision)>) {
    let (sender, inbox) = mpsc::channel(64);
    let instance = InstanceId::parse(&format!("{:012x}", fastrand::u64(..) >> 16)).unwrap();
    let (model, limit, reservation, reason) = (name.to_owned(), gib * GIB, ReservationId(0), StartReason::Load);
    (
        PlacementRequest {
            model,
            instance,
            limit,
            mode,
            reservation,
            reason,
            mailbox: Mailbox::new(sender, |decision| decision),
        },
        inbox,
    )
}

/// The task of a model, as far as GPU memory goes, and an honest instance.
pub(super) struct Played {
    pub(super) reservation: Placement,
    pub(super) inbox: mpsc::Receiver<(InstanceKey, Decision)>,
    pub(super) instance: InstanceId,
    pub(super) usage: GpuUsage,
    card: Option<GpuSpec>,
}

impl Played {
    /// The next word. Questions about use are answered.
    async fn decision(&mut self) -> Decision {
        let limit = Duration::from_secs(1000);
        loop {
            let message = tokio::time::timeout(limit, self.inbox.recv()).await.expect("an event within the limit");
            let Some((key, decision)) = message else { panic!("another message") };
            assert_eq!(key, self.reservation.key());
            match decision {
                Decision::SampleUsage => self.reservation.on_usage(self.usage),
                Decision::Placed(_)
                | Decision::Refused { .. }
                | Decision::Granted
                | Decision::Yield
                | Decision::Command { .. }
                | Decision::End { .. } => return decision,
            }
        }
    }

    /// Obeys until it is told something that ends a wait.
    async fn obey(&mut self) -> Decision {
        loop {
            match self.decision().await {
                Decision::Yield => self.reservation.yielded(),
                Decision::Command { number, command } => self.carry_out(number, command),
                decision @ (Decision::Placed(_)
                | Decision::Refused { .. }
                | Decision::Granted
                | Decision::End { .. }) => return decision,
                Decision::SampleUsage => unreachable!("answered"),
            }
        }
    }

    fn carry_out(&mut self, number: u64, command: ResidencyCommand) {
        let before = self.usage.resident_bytes;
        match command {
            ResidencyCommand::Evict { bytes } => self.usage.resident_bytes = before.saturating_sub(bytes),
            ResidencyCommand::Restore => self.usage.resident_bytes = self.usage.managed_bytes,
            ResidencyCommand::Report => {}
        }
        let moved_bytes = before.abs_diff(self.usage.resident_bytes);
        self.reservation.on_report(ResidencyReport {
            number,
            moved_bytes,
            usage: self.usage,
            ..ResidencyReport::default()
        });
    }

    /// Placed, started, ready, and everything of its limit allocated.
    pub(super) async fn run(&mut self, gib: u64) {
        let Decision::Placed(spec) = self.obey().await else { panic!("not placed") };
        let bytes = gib * GIB;
        self.usage = GpuUsage { managed_bytes: bytes, resident_bytes: bytes, ..GpuUsage::default() };
        self.reservation.ready();
        if spec.mode == GpuMode::Unified {
            let Decision::Command { number, command: ResidencyCommand::Report } = self.decision().await else {
                panic!("not asked")
            };
            self.carry_out(number, ResidencyCommand::Report);
        }
        self.card = Some(spec);
    }
}

/// Plays a model in the background, for as long as somebody else is looked at.
fn background(mut played: Played) -> tokio::task::JoinHandle<Played> {
    tokio::spawn(async move {
        let decision = played.obey().await;
        panic!("{decision:?}")
    })
}

async fn refused(world: &World, gib: u64, mode: GpuMode) -> (bool, String) {
    let Decision::Refused { permanent, recreate_fits: false, message } =
        world.model_in("m", gib, mode).decision().await
    else {
        panic!("not refused")
    };
    (permanent, message)
}

#[tokio::test(start_paused = true)]
async fn a_placed_instance_is_told_its_card_and_its_limit() {
    let world = World::new(1);
    let mut model = world.model("a", 3);
    model.run(3).await;
    let spec = model.card.clone().unwrap();
    let expected = GpuSpec { uuid: card(0).uuid.to_string(), minor: 4, limit_bytes: 3 * GIB, mode: GpuMode::Unified };
    assert_eq!(spec, expected);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let gpus = world.handle.view();
    assert_eq!((gpus.gpus[0].committed_bytes, gpus.gpus[0].budget_bytes, gpus.message), (3 * GIB, 10 * GIB, None));
    let instance = &gpus.gpus[0].instances[0];
    assert_eq!((instance.model.as_str(), instance.instance.as_str()), ("a", model.instance.as_str()));
    assert_eq!(world.metric("omni_gpu_memory_committed_bytes{gpu=\"0\"}"), (3 * GIB).to_string());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_seat_frees_what_it_had() {
    let world = World::new(1);
    let mut model = world.model("a", 3);
    model.run(3).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(world.metrics().contains("omni_gpu_resident_bytes{model=\"a\"}"));
    let id = model.instance.to_string();
    assert_eq!(world.handle.view().gpus[0].instances[0].instance, id);
    assert!(world.handle.away().is_empty());
    drop(model);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(world.handle.view().gpus[0].committed_bytes, 0);
    assert!(world.handle.view().gpus[0].instances.is_empty());
    assert!(!world.metrics().contains("omni_gpu_resident_bytes{model=\"a\"}"));
}

#[tokio::test(start_paused = true)]
async fn an_idle_model_leaves_for_one_that_starts_and_comes_back_for_its_request() {
    let world = World::new(1);
    let mut first = world.model("first", 6);
    first.run(6).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut second = world.model("second", 6);
    let leaving = tokio::spawn(async move {
        let Decision::Yield = first.decision().await else { panic!("not asked to yield") };
        first.reservation.yielded();
        let Decision::Command { number, command } = first.decision().await else { panic!("no command") };
        assert!(matches!(command, ResidencyCommand::Evict { bytes } if bytes >= 2 * GIB), "{command:?}");
        first.carry_out(number, command);
        first
    });
    second.run(6).await;
    let mut first = leaving.await.unwrap();
    assert!(world.looks.try_recv().is_ok(), "a claimed eviction is looked at");
    let out: u64 = world.metric("omni_gpu_swap_bytes_total{direction=\"out\"}").parse().unwrap();
    assert!(out >= 2 * GIB);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.handle.away(), HashSet::from([first.instance.to_string()]));

    let second = background(second);
    first.reservation.request_grant();
    assert_eq!(first.obey().await, Decision::Granted);
    assert_eq!(first.usage.resident_bytes, 6 * GIB);
    assert_eq!(world.metric("omni_gpu_swap_in_seconds_count{model=\"first\"}"), "1");
    assert_eq!(world.metric("omni_gpu_swap_bytes_total{direction=\"in\"}"), out.to_string());
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn a_refused_placement_has_its_reason() {
    let world = World::new(1);
    let (permanent, message) = refused(&world, 11, GpuMode::Unified).await;
    assert!(permanent && message.contains("11GiB") && message.contains("10GiB"), "{message}");
    let mut pinned = world.model_in("p", 8, GpuMode::Device);
    pinned.run(0).await;
    let (permanent, message) = refused(&world, 3, GpuMode::Unified).await;
    assert!(!permanent && message.contains("2GiB") && !message.contains('`'), "{message}");
    assert_eq!(world.metric("omni_gpu_refusals_total{reason=\"pinned\"}"), "1");
}

#[tokio::test(start_paused = true)]
async fn a_node_without_a_card_says_so_to_all() {
    let world = World::found(Err("no NVIDIA driver can be used".into()));
    let (permanent, message) = refused(&world, 1, GpuMode::Unified).await;
    assert!(permanent && message.contains("no NVIDIA driver"), "{message}");
    assert_eq!(world.handle.view().message.as_deref(), Some("no NVIDIA driver can be used"));
    let mut adopted = world.adopted("a", 1, "GPU-00000000-0000-0000-0000-000000000000");
    let Decision::End { .. } = adopted.decision().await else { panic!("it cannot stay") };
}

#[tokio::test(start_paused = true)]
async fn memory_that_cannot_be_moved_is_not_promised_to_be() {
    let unable = Card { unified: Err("it has no concurrent managed access".into()), ..card(0) };
    let world = World::with(vec![unable.clone()]);
    let (permanent, message) = refused(&world, 1, GpuMode::Unified).await;
    assert!(permanent && message.contains("concurrent managed access"), "{message}");
    world.model_in("d", 1, GpuMode::Device).run(0).await;

    let mixed = World::with(vec![unable, card(1)]);
    let mut model = mixed.model("m", 1);
    model.run(1).await;
    assert_eq!(model.card.unwrap().uuid, card(1).uuid.to_string());
}

#[tokio::test(start_paused = true)]
async fn a_process_that_goes_past_the_shim_costs_its_instance() {
    let world = World::new(1);
    let mut honest = world.model("honest", 2);
    honest.run(2).await;
    let mut cheat = world.model("cheat", 2);
    cheat.run(2).await;
    let cheat_id = cheat.instance.clone();
    let honest_id = honest.instance.clone();
    let honest = background(honest);
    let ended = tokio::spawn(async move { cheat.obey().await });
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        // Events before a measurement are in it, on the real clock too.
        world.sees(vec![(cheat_id.clone(), 4 * GIB), (honest_id.clone(), 2 * GIB + GIB / 2)]);
    }
    let Decision::End { displaced: false, message } = ended.await.unwrap() else { panic!("not ended") };
    assert!(message.contains("4GiB"), "{message}");
    assert_eq!(world.metric("omni_gpu_ends_total{reason=\"beyond-limit\"}"), "1");
    assert!(!honest.is_finished());
    assert_eq!(world.metric("omni_gpu_memory_used_bytes{gpu=\"0\"}"), (6 * GIB + GIB / 2).to_string());
}

#[tokio::test(start_paused = true)]
async fn a_command_that_is_not_answered_costs_the_instance() {
    let world = World::new(1);
    let mut mute = world.model("mute", 6);
    mute.run(6).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut second = world.model("second", 6);
    let ended = tokio::spawn(async move {
        loop {
            match mute.decision().await {
                Decision::Yield => mute.reservation.yielded(),
                // The wrong number is no answer.
                Decision::Command { number, .. } => {
                    let report = ResidencyReport { number: number + 1, ..ResidencyReport::default() };
                    mute.reservation.on_report(report);
                }
                decision => return decision,
            }
        }
    });
    second.run(6).await;
    let Decision::End { displaced: false, message } = ended.await.unwrap() else { panic!("not ended") };
    assert!(message.contains("evict-timeout"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_card_is_used_no_more() {
    let world = World::new(2);
    let mut model = world.model("a", 2);
    model.run(2).await;
    let lost = model.card.clone().unwrap().minor - 4;
    let fine = Seen { used_bytes: 0, owned: Vec::new() };
    let mut cards = vec![Ok(fine.clone()), Ok(fine)];
    cards[lost as usize] = Err(NvmlError::Lost("GPU is lost".into()));
    world.looked(cards);
    let Decision::End { displaced: false, .. } = model.obey().await else { panic!("not ended") };
    drop(model);
    let mut next = world.model("b", 2);
    next.run(2).await;
    assert_eq!(next.card.clone().unwrap().minor - 4, 1 - lost);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(world.handle.view().message.unwrap().contains(&format!("GPU {lost} ")));
    assert_eq!(world.metric(&format!("omni_gpu_lost{{gpu=\"{lost}\"}}")), "1");
}

#[tokio::test(start_paused = true)]
async fn an_adopted_instance_keeps_its_memory_where_it_is() {
    let world = World::new(2);
    let mut model = world.adopted("a", 4, card(1).uuid.as_str());
    let Decision::Command { number, command: ResidencyCommand::Report } = model.decision().await else {
        panic!("not asked what it has")
    };
    model.carry_out(number, ResidencyCommand::Report);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let on: Vec<_> = world.handle.view().gpus.iter().map(|gpu| (gpu.committed_bytes, gpu.resident_bytes)).collect();
    assert_eq!(on, [(0, 0), (4 * GIB, 4 * GIB)]);
    model.reservation.request_grant();
    assert_eq!(model.obey().await, Decision::Granted);
    assert_eq!(world.metric("omni_gpu_swap_bytes_total{direction=\"out\"}"), "0");

    let mut stranger = world.adopted("b", 4, "GPU-ffffffff-0000-0000-0000-000000000000");
    let Decision::End { .. } = stranger.decision().await else { panic!("its card is not here") };
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_never_says_what_there_is_stops_nobody_for_ever() {
    let (sender, cards) = oneshot::channel();
    let (_driver, readings) = watch::channel(Reading { began: std::time::Instant::now(), cards: Vec::new() });
    let (look, _looks) = std::sync::mpsc::sync_channel(1);
    let (handle, receiver) = queue::new();
    let metrics = GpuMetrics::register(&mut Registry::default());
    tokio::spawn(run(
        Gpu::default(),
        Probe { cards, readings, look },
        receiver,
        (capacity(), metrics),
        Watchdog::default().heartbeat("cards"),
    ));
    let (request, mut inbox) = request("m", 1, GpuMode::Unified);
    let _seat = handle.place(request);
    assert!(handle.view().message.unwrap().contains("being asked"));
    let Some((_, Decision::Refused { message, .. })) = inbox.recv().await else { panic!("not refused") };
    assert!(message.contains("did not say"), "{message}");
    drop(sender);
}
