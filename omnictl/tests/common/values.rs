//! Values of the control API that show every case a table or a text can meet.

use omni_control_api::{
    Because, Budget, Budgets, Directory, Explain, Generation, Gpu, GpuInstance, Gpus, History, Instance, Model, Models,
    Node, NotServed, Residency, Role, State, Stop, StopReason, Top, TopRow, Version,
};

pub(crate) const VERSION: &str = "3f9a0c2b1d4e5f60718293a4b5c6d7e8f9a0b1c2d3e4f5061728394a5b6c7d8e";
pub(crate) const OLD_VERSION: &str = "00aa0c2b1d4e5f60718293a4b5c6d7e8f9a0b1c2d3e4f5061728394a5b6c7d8e";

pub(crate) fn node() -> Node {
    Node {
        version: "0.1.0".to_owned(),
        pid: 4242,
        uptime_seconds: 7300.0,
        listen: "127.0.0.1:8080".to_owned(),
        admin_listen: "127.0.0.1:9090".to_owned(),
        warnings: vec!["anyone who reaches 0.0.0.0:8080 may ask any model".to_owned()],
        models_dir: "/srv/models".to_owned(),
        single_model: None,
        snapshot_files_limit: 20_000,
        snapshot_bytes_limit: 4 << 30,
        require_hashes: false,
        weights_folders: Vec::new(),
        weights_sources: Vec::new(),
        launcher_connected: true,
        launcher_old_protocol: None,
        buffered_bytes: 1536,
        buffered_bytes_limit: 512 << 20,
    }
}

/// A model that is there and does nothing.
pub(crate) fn model(name: &str, state: State) -> Model {
    Model {
        state,
        version: Some(VERSION.to_owned()),
        directory: Directory { version: Some(VERSION.to_owned()), refused: None },
        queue_limit: 128,
        ..Model::unseen(name.to_owned())
    }
}

pub(crate) fn instance(id: &str) -> Instance {
    Instance {
        id: id.to_owned(),
        version: VERSION.to_owned(),
        state: State::Ready,
        pid: Some(4711),
        age_seconds: 185.0,
        in_flight: 1,
        old_protocol: None,
    }
}

pub(crate) fn generation(version: &str, role: Role, state: State) -> Generation {
    Generation {
        version: version.to_owned(),
        role,
        state,
        message: None,
        retry_in_seconds: None,
        preparation: None,
        prepared: None,
    }
}

pub(crate) fn ready(name: &str, id: &str) -> Model {
    Model {
        generations: vec![generation(VERSION, Role::Serving, State::Ready)],
        instances: vec![instance(id)],
        in_flight: 1,
        queued: 2,
        ..model(name, State::Ready)
    }
}

/// A model whose new version fails, while an instance of the one before that still drains.
pub(crate) fn rollout(name: &str) -> Model {
    let draining = Instance {
        version: OLD_VERSION.to_owned(),
        state: State::Draining,
        pid: None,
        in_flight: 0,
        ..instance("0123456789ab")
    };
    let candidate = Generation {
        message: Some("setup failed:\nTraceback (most recent call last):\nKeyError: 'x'".to_owned()),
        retry_in_seconds: Some(3.0),
        ..generation(&"c".repeat(64), Role::Candidate, State::Failed)
    };
    let serving = ready(name, "9c1e5a77b0d2");
    Model {
        generations: vec![serving.generations[0].clone(), candidate],
        instances: vec![draining, serving.instances[0].clone()],
        directory: Directory { version: Some("c".repeat(64)), refused: None },
        ..serving
    }
}

/// A model that a rollback brought back from a directory that cannot be served.
pub(crate) fn rolled_back(name: &str) -> Model {
    let refused = Some("omni.toml: line 2: unknown key `memroy`".to_owned());
    Model {
        pinned: Some(VERSION.to_owned()),
        directory: Directory { version: Some("d".repeat(64)), refused },
        ..ready(name, "9c1e5a77b0d2")
    }
}

/// A model that ends again and again.
pub(crate) fn failed(name: &str) -> Model {
    Model {
        message: Some(
            "Traceback (most recent call last):\n  File \"/model/model.py\", line 3\nKeyError: 'x\u{1b}[2J'".to_owned(),
        ),
        restarts: 7,
        last_exit: Some("exited with code 1".to_owned()),
        last_stop: Some(stop()),
        retry_in_seconds: Some(12.5),
        ..model(name, State::Failed)
    }
}

pub(crate) fn models() -> Models {
    let building = vec!["Resolved 3 packages in 12ms".to_owned(), "Downloading numpy (15.4MiB)".to_owned()];
    Models {
        models: vec![
            Model {
                version: None,
                directory: Directory { version: None, refused: Some("data/pipe is a FIFO".to_owned()) },
                message: Some("data/pipe is a FIFO".to_owned()),
                ..model("@acme/broken", State::Failed)
            },
            ready("cowsay", "9c1e5a77b0d2"),
            Model { build_log: building, ..model("embeddings", State::Preparing) },
            failed("forecast"),
            Model { held: true, ..model("memory", State::Stopped) },
            rolled_back("rolled-back"),
            rollout("rollout"),
            model("thumbnail", State::Stopped),
        ],
        not_served: vec![NotServed {
            directory: "team/project/family/name/v1".to_owned(),
            reason: "its path has more than four parts, which a model's name cannot have: move it up".to_owned(),
        }],
    }
}

pub(crate) fn history(name: &str) -> History {
    let version =
        |version: &str, first_ready_unix_ms, role| Version { version: version.to_owned(), first_ready_unix_ms, role };
    let versions =
        vec![version(VERSION, 1_795_000_000_000, Some(Role::Serving)), version(OLD_VERSION, 1_794_000_000_000, None)];
    History { name: name.to_owned(), versions }
}

fn stop() -> Stop {
    let message = "its room is needed for a new version of llama".to_owned();
    Stop { reason: StopReason::Displaced, message, unix_ms: 1_795_000_000_000 }
}

pub(crate) fn explain(name: &str) -> Explain {
    Explain {
        name: name.to_owned(),
        state: State::Ready,
        ready: 2,
        instances: 3,
        wanted: 4,
        because: Because::RecentLoad,
        min: 1,
        max: 8,
        concurrency: 2,
        load: 5,
        average: 4.25,
        average_seconds: 2.0,
        greatest: 7.5,
        greatest_seconds: 30.0,
        message: Some("no room on the node: memory".to_owned()),
        last_stop: Some(stop()),
        budgets: Budgets {
            memory_bytes: Budget { instance: 2 << 30, committed: 60 << 30, limit: Some(64 << 30) },
            cpu_millis: Budget { instance: 1500, committed: 30_000, limit: None },
            processes: Budget { instance: 512, committed: 9000, limit: None },
        },
    }
}

pub(crate) fn top() -> Top {
    let row = |name: &str, memory_bytes, cpu_usec, in_flight, gpu_bytes| TopRow {
        name: name.to_owned(),
        state: State::Ready,
        memory_bytes,
        memory_limit_bytes: 2 << 30,
        gpu_bytes,
        cpu_usec,
        pids: 3,
        in_flight,
        requests: 1234,
    };
    let embeddings = row("embeddings", 1_900_000_000, 250_000_000, 12, Some(3 << 30));
    Top { models: vec![row("cowsay", 21 << 20, 1_250_000, 0, None), embeddings] }
}

/// A card that is full, and a card without instances.
pub(crate) fn gpus() -> Gpus {
    let instance = |model: &str, instance: &str, gib: u64, residency, idle_seconds| GpuInstance {
        model: model.to_owned(),
        instance: instance.to_owned(),
        limit_bytes: gib << 30,
        allocated_bytes: (gib << 30) / 2,
        resident_bytes: if residency == Residency::Resident { (gib << 30) / 2 } else { 0 },
        residency,
        idle_seconds,
        evictions: 0,
        restores: 0,
    };
    let card = |index: u32, committed_bytes: u64, instances: Vec<GpuInstance>| Gpu {
        index,
        uuid: format!("GPU-0000000{index}-0000-0000-0000-000000000000"),
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        total_bytes: 80 << 30,
        used_bytes: (1 << 30) + instances.iter().map(|instance| instance.resident_bytes).sum::<u64>(),
        budget_bytes: 76 << 30,
        resident_bytes: instances.iter().map(|instance| instance.resident_bytes).sum(),
        committed_bytes,
        commit_limit_bytes: 304 << 30,
        instances,
    };
    let full = vec![
        instance("cowsay", "9c1e5a77b0d2", 60, Residency::Resident, None),
        instance("@cf/meta/llama", "0123456789ab", 70, Residency::Evicted, Some(312.0)),
        instance("embeddings", "ba9876543210", 3, Residency::Waiting, None),
    ];
    Gpus {
        gpus: vec![card(0, 133 << 30, full), card(1, 0, Vec::new())],
        host_committed_bytes: 57 << 30,
        host_budget_bytes: 256 << 30,
        message: None,
    }
}

/// A node that has none.
pub(crate) fn no_gpus() -> Gpus {
    Gpus {
        gpus: Vec::new(),
        host_committed_bytes: 0,
        host_budget_bytes: 0,
        message: Some("no NVIDIA driver can be used: libnvidia-ml.so.1: cannot open shared object file".to_owned()),
    }
}
