//! Settings of a test's instance, with defaults.

use super::MIB;
use omni_node_protocol::launcher::GpuSpec;
use omni_sandbox::{Bind, Cache, Weights};
use std::path::PathBuf;

/// Settings of a test's instance.
pub struct Setup {
    pub body: String,
    pub memory_bytes: u64,
    /// Memory of the group beyond the size that the model is shown.
    pub unseen_bytes: u64,
    pub pids: u32,
    pub tmp_bytes: u64,
    pub log_lines_per_second: u32,
    pub host_network: bool,
    pub cache: Option<Cache>,
    pub weights: Option<Weights>,
    pub binds: Vec<Bind>,
    pub devices: Vec<PathBuf>,
    pub gpu: Option<GpuSpec>,
    pub env: Vec<(String, String)>,
    pub uid: Option<u32>,
    pub peer_uid: u32,
    /// The body is the model of the real engine, from this zygote where there is one.
    pub real: bool,
    pub zygote: Option<PathBuf>,
}

/// An instance whose engine runs this Python.
pub fn body(body: &str) -> Setup {
    Setup {
        body: body.to_owned(),
        memory_bytes: 256 * MIB,
        unseen_bytes: 0,
        pids: 64,
        tmp_bytes: 16 * MIB,
        log_lines_per_second: 1000,
        host_network: false,
        cache: None,
        weights: None,
        binds: vec![],
        devices: vec![],
        gpu: None,
        env: vec![],
        uid: None,
        peer_uid: 0,
        real: false,
        zygote: None,
    }
}

/// An instance of a model with this code, run by the real engine.
pub fn model(code: &str) -> Setup {
    Setup { real: true, ..body(&format!("{MODEL}{code}")) }
}

pub(super) const MODEL: &str = "import json, os, sys\ndef tell(**facts):\n    print(json.dumps(facts), flush=True)\n\
                     def handle_request(request, context):\n    return 1\n";
