//! Values of the control API that show every case a table or a text can meet.

use omni_api::{Instance, Model, Models, Node, State, Top, TopRow};

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
    let row = |name: &str, memory_bytes, cpu_usec, in_flight| TopRow {
        name: name.to_owned(),
        state: State::Ready,
        memory_bytes,
        memory_limit_bytes: 2 << 30,
        cpu_usec,
        pids: 3,
        in_flight,
        requests: 1234,
    };
    Top { models: vec![row("cowsay", 21 << 20, 1_250_000, 0), row("embeddings", 1_900_000_000, 250_000_000, 12)] }
}
