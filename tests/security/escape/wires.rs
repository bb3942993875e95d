//! Descriptors that a model sends on its data and control connections: the node keeps none.

use crate::control::FOLDER;
use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::Pid;
use omni_tests::neighbour::{self, with_neighbour};
use omni_tests::process::descriptors;
use omni_tests::{PATIENCE, wait_for};
use serde_json::json;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

const FLOOD: &str = include_str!("probes/flood.py");
const MESSAGES: usize = 8;

/// How many descriptors a reader gets that has room for them.
fn taken(socket: &UnixStream) -> usize {
    let (mut bytes, mut space) = ([0; 64], cmsg_space!([i32; 253]));
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).unwrap();
    let rights = message.cmsgs().unwrap().filter_map(|part| match part {
        ControlMessageOwned::ScmRights(numbers) => Some(numbers),
        _ => None,
    });
    let numbers: Vec<i32> = rights.flatten().collect();
    for number in &numbers {
        nix::unistd::close(*number).unwrap();
    }
    numbers.len()
}

/// How many descriptors a process has; those of control groups, which come and go with instances, no model can open.
fn held(pid: Pid) -> usize {
    descriptors(pid).iter().filter(|name| !name.starts_with("/sys/fs/cgroup/")).count()
}

#[test]
fn descriptors_sent_by_a_model_are_closed() {
    // The control: a plain reader gets all of them.
    let (reader, writer) = UnixStream::pair().unwrap();
    let program = [format!("{FOLDER}/probes/flood.py"), MESSAGES.to_string()];
    let sender = Command::new("python3").arg("-B").args(program).stdin(Stdio::from(OwnedFd::from(writer))).output();
    let sent: usize = String::from_utf8(sender.unwrap().stdout).unwrap().trim().parse().unwrap();
    assert!(sent >= 253, "{sent}");
    assert_eq!(taken(&reader), 253, "the first message");

    let node = with_neighbour().config(crate::ROOMY).model("floods", &[("model.py", FLOOD)]).start();
    assert_eq!(neighbour::post(&node, "floods", &json!(0)).json()["result"], "well");
    neighbour::is_well(&node, "the start");
    let worker = node.worker(node.engine("neighbour").unwrap()).unwrap();
    let keepers = [node.pid(), node.launcher().unwrap(), worker];
    let before = keepers.map(held);
    for round in 0..3 {
        // The model's sockets are full of unsolicited data: the instance may end over it, and only it.
        let _ = neighbour::post(&node, "floods", &json!(MESSAGES));
        neighbour::is_well(&node, "a flood of descriptors");
        wait_for("the model to serve again", PATIENCE, || {
            (neighbour::post(&node, "floods", &json!(0)).status == 200).then_some(())
        });
        let worker = node.worker(node.engine("floods").expect("a process")).expect("a worker");
        let neighbours = before[2];
        wait_for(&format!("no descriptor more, round {round}"), PATIENCE, || {
            let now = keepers.map(held);
            let few = now.iter().zip(before).all(|(now, before)| *now <= before);
            (few && held(worker) <= neighbours).then_some(())
        });
    }
    node.stop();
}
