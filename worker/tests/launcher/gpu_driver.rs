//! A model that uses its GPU: the real shim in front of the simulated driver, in a real sandbox. The model is Python that
//! opens the driver itself, in the ways programs do.

use super::gpu::{GpuNode, id};
use super::node::request;
use omni_node_protocol::launcher::{GpuMode, GpuSpec};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The limit of every model here.
const LIMIT: u64 = 64 << 20;
/// The second simulated card.
const SECOND: &str = "GPU-0a111e55-514d-4000-8000-000000000001";

/// Runs a model on the second card of two; what it tells.
fn model(mode: GpuMode, python: &str) -> BTreeMap<String, Value> {
    let gpus = GpuNode::simulated();
    let text =
        format!("{}\n# the test's own part\n{python}\nsys.stdout.flush()\nos._exit(0)\n", include_str!("gpu_model.py"));
    let (scheduler, snapshot, environment) = gpus.prepared(&text);
    let mut spec = request("00000000000a", "m", &snapshot, &environment);
    spec.gpu = Some(GpuSpec { uuid: SECOND.to_owned(), minor: 1, limit_bytes: LIMIT, mode });
    scheduler.start(spec).unwrap();
    let facts = gpus.facts(&id("00000000000a"));
    scheduler.gone(&id("00000000000a"));
    assert!(gpus.node.traces().is_empty() && gpus.node.groups().is_empty());
    facts
}

/// Sees its own card with its limit as memory, gets memory up to it and the driver's own answer past it.
fn limited() -> Value {
    json!({ "init": 0, "devices": 1, "total": LIMIT, "info": [LIMIT, LIMIT], "half": 0, "past": 2, "again": 0 })
}

#[test]
fn the_limit_is_the_cards_memory_however_the_driver_is_opened() {
    for mode in [GpuMode::Unified, GpuMode::Device] {
        let found = model(
            mode,
            r#"
tell(plain=child("use(ctypes.CDLL('libcuda.so.1'))"))
tell(deep=child("use(ctypes.CDLL('libcuda.so.1', mode=os.RTLD_NOW | os.RTLD_DEEPBIND))"))
tell(own=child("use(ctypes.CDLL(None), missing='libcuda.so.1')"))
tell(past_the_proxy=child("use(ctypes.CDLL('/gpu/driver/libcuda.so.1'))"))
tell(no_variables=child("use(ctypes.CDLL('/gpu/libcuda.so.1'))", *os.environ))
tell(no_path=child("use(ctypes.CDLL('libcuda.so.1'))", "LD_LIBRARY_PATH"))
"#,
        );
        for way in ["plain", "deep", "own", "past_the_proxy", "no_variables"] {
            assert_eq!(found[way], limited(), "{way} in {mode:?}");
        }
        assert_eq!(found["no_path"], "OSError", "no driver is found past the shim in {mode:?}");
    }
}

#[test]
fn all_processes_of_a_model_share_one_limit() {
    let found = model(
        GpuMode::Unified,
        r#"
cuda = ctypes.CDLL("libcuda.so.1")
prepare(cuda)
tell(mine=allocate(cuda, 40 << 20)[0])
tell(childs=child("prepare(cuda := ctypes.CDLL('libcuda.so.1')); say([allocate(cuda, n << 20)[0] for n in (40, 20)])"))
tell(after=allocate(cuda, 24 << 20)[0])
"#,
    );
    assert_eq!(found["mine"], 0);
    assert_eq!(found["childs"], json!([2, 0]));
    assert_eq!(found["after"], 0, "what a child had is free when it has ended");
}

#[test]
fn nvml_shows_the_limit_too() {
    let found = model(
        GpuMode::Unified,
        r#"
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
device, memory, count = ctypes.c_void_p(), Memory(), ctypes.c_uint()
tell(init=nvml.nvmlInit_v2(), of=nvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"].encode(), ctypes.byref(device)))
tell(info=nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)), total=memory.total, used=memory.used)
"#,
    );
    assert_eq!(
        found,
        BTreeMap::from([
            ("info".to_owned(), json!(0)),
            ("init".to_owned(), json!(0)),
            ("of".to_owned(), json!(0)),
            ("total".to_owned(), json!(LIMIT)),
            ("used".to_owned(), json!(0)),
        ])
    );
}
