//! Values of the control API that show every case a table or a text can meet.

use omni_api::{Gpu, GpuInstance, Gpus, Instance, Model, Models, Node, Residency, State, Top, TopRow};

pub(crate) fn node() -> Node {
    Node {
        version: "0.1.0".to_owned(),
        pid: 4242,
        uptime_seconds: 7300.0,
        listen: "127.0.0.1:8080".to_owned(),
        admin_listen: "127.0.0.1:9090".to_owned(),
        launcher_connected: true,
        buffered_bytes: 1536,
        buffered_bytes_limit: 512 << 20,
    }
}

/// A model that is there and does nothing.
pub(crate) fn model(name: &str, state: State) -> Model {
    Model {
        name: name.to_owned(),
        state,
        held: false,
        version: Some("3f9a0c2b1d4e5f60718293a4b5c6d7e8f9a0b1c2d3e4f5061728394a5b6c7d8e".to_owned()),
        message: None,
        instance: None,
        in_flight: 0,
        queued: 0,
        queue_limit: 128,
        restarts: 0,
        last_exit: None,
        retry_in_seconds: None,
        build_log: Vec::new(),
    }
}

pub(crate) fn ready(name: &str, instance: &str) -> Model {
    let instance = Instance { id: instance.to_owned(), pid: Some(4711), age_seconds: 185.0 };
    Model { instance: Some(instance), in_flight: 1, queued: 2, ..model(name, State::Ready) }
}

/// A model that ends again and again.
pub(crate) fn failed(name: &str) -> Model {
    Model {
        message: Some(
            "Traceback (most recent call last):\n  File \"/model/model.py\", line 3\nKeyError: 'x\u{1b}[2J'".to_owned(),
        ),
        restarts: 7,
        last_exit: Some("exited with code 1".to_owned()),
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
                message: Some("data/pipe is a FIFO".to_owned()),
                ..model("@acme/broken", State::Failed)
            },
            ready("cowsay", "9c1e5a77b0d2"),
            Model { build_log: building, ..model("embeddings", State::Preparing) },
            failed("forecast"),
            Model { held: true, ..model("memory", State::Stopped) },
            model("thumbnail", State::Stopped),
        ],
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

/// One card that is full and one that nobody uses.
pub(crate) fn gpus() -> Gpus {
    let instance = |model: &str, instance: &str, gib: u64, residency, idle_seconds| GpuInstance {
        model: model.to_owned(),
        instance: instance.to_owned(),
        limit_bytes: gib << 30,
        allocated_bytes: (gib << 30) / 2,
        resident_bytes: if residency == Residency::Resident { (gib << 30) / 2 } else { 0 },
        residency,
        idle_seconds,
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
