//! Two cards in one node: each model gets one of them, sees no other, and both are used.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_cuda_card::Settings;
use omni_tests::gpu::{MIB, ask, instance, model, run};
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::json;

fn two() -> [Settings; 2] {
    [0, 1].map(|index| Settings { memory: 512 * MIB, ..Settings::numbered(index) })
}

/// The card that a model is on, by its place in the list of the node.
fn card_of(node: &Node, model: &str) -> usize {
    let on = |gpu: &omni_control_api::Gpu| gpu.instances.iter().any(|instance| instance.model == model);
    node.gpus().gpus.iter().position(on).unwrap_or_else(|| panic!("{model} is on no card"))
}

fn used(node: &Node) -> [u64; 2] {
    [0, 1].map(|index| node.cards()[index].state().unwrap().used() / MIB)
}

/// The files of cards in `/dev`, how many cards the driver has, and what it calls the only one.
const LOOK: &str = r#"
import glob
count, device, uuid = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
call("cuDeviceGetCount", ctypes.byref(count))
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDeviceGetUuid_v2", uuid, device)
second = attempt("cuDeviceGet", ctypes.byref(device), 1)
tell(files=sorted(glob.glob("/dev/nvidia*")), count=count.value, second=second, uuid=bytes(uuid).hex(),
     visible=os.environ["CUDA_VISIBLE_DEVICES"])
"#;

#[test]
fn a_model_sees_its_own_card_only_and_both_are_used() {
    let node = Node::builder().gpus(&two(), "memory-budget = \"64MiB\"").start();
    let names = ["a", "b", "c", "d"];
    for (count, name) in names.into_iter().enumerate() {
        model(name, 28).publish(&node);
        ask(&node, name);
        // The one with most left to commit is next.
        assert_eq!(used(&node).iter().sum::<u64>(), 28 * (count as u64 + 1));
    }
    assert_eq!(used(&node), [56, 56]);
    let settings = two();
    for name in names {
        let index = card_of(&node, name);
        let uuid = settings[index].uuid_text();
        let expected = json!({
            "files": ["/dev/nvidia-uvm".to_owned(), format!("/dev/nvidia{index}"), "/dev/nvidiactl".to_owned()],
            "count": 1,
            "second": 101,
            "uuid": uuid.trim_start_matches("GPU-").replace('-', ""),
            "visible": uuid,
        });
        assert_eq!(run(&node, name, LOOK), expected, "{name}");
    }
    // All fit where they are: nothing moves.
    names.iter().rev().for_each(|name| drop(ask(&node, name)));
    let moves = |index: usize| node.cards()[index].state().unwrap().counters.prefetch_to_host;
    assert_eq!([moves(0), moves(1)], [0, 0]);
    node.stop();
}

#[test]
fn a_freed_place_goes_to_the_next_model() {
    let node = Node::builder().gpus(&two(), "memory-budget = \"64MiB\"").start();
    for name in ["a", "b"] {
        model(name, 60).publish(&node);
        ask(&node, name);
    }
    let (of_a, of_b) = (card_of(&node, "a"), card_of(&node, "b"));
    assert_ne!(of_a, of_b);
    node.unpublish("a");
    wait_for("the place to be free", PATIENCE, || instance(&node, "a").is_none().then_some(()));
    model("c", 60).publish(&node);
    ask(&node, "c");
    assert_eq!((card_of(&node, "c"), card_of(&node, "b")), (of_a, of_b));
    assert_eq!(used(&node), [60, 60]);
    assert_eq!(node.cards()[of_b].state().unwrap().counters.prefetch_to_host, 0, "its neighbour never moved");
    // Competition is on one card: the model on the other card goes on.
    model("d", 60).publish(&node);
    ask(&node, "d");
    let of_d = card_of(&node, "d");
    let other = 1 - of_d;
    assert!(node.cards()[of_d].state().unwrap().counters.prefetch_to_host > 0);
    assert_eq!(node.cards()[other].state().unwrap().counters.prefetch_to_host, 0);
    node.stop();
}

#[test]
fn only_the_cards_that_the_configuration_names_are_used() {
    let uuid = two()[1].uuid_text();
    for named in ["1".to_owned(), format!("\"{uuid}\"")] {
        let node = Node::builder().gpus(&two(), &format!("memory-budget = \"64MiB\"\ndevices = [{named}]")).start();
        for name in ["a", "b"] {
            model(name, 40).publish(&node);
            ask(&node, name);
        }
        let gpus = node.gpus().gpus;
        assert_eq!((gpus.len(), gpus[0].index, gpus[0].uuid.as_str()), (1, 1, uuid.as_str()));
        assert_eq!(used(&node), [0, 64]);
        node.stop();
    }
}
