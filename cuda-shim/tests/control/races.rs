//! Moves while eight threads allocate and free: nothing is freed during a move, and nothing is counted twice.

use crate::instance::rounds;
use crate::node::{DRIVERS, Node};
use omni_gpu_protocol::account::Use;
use omni_gpu_protocol::control::Command;

#[test]
fn no_range_is_freed_during_its_move() {
    for driver in DRIVERS {
        let node = Node::new(driver);
        let mut client = node.start();
        client.ask("begin");
        client.tell(&format!("churn {}", rounds(4000)));
        let (mut shim, _) = node.accept();
        let mut moved = 0;
        for bytes in [u64::MAX, 1, 3 << 20].into_iter().cycle() {
            let report = shim.evict(bytes);
            moved += report.moved;
            assert_eq!(report.error, 0, "{driver}");
            let report = shim.carry_out(Command::Restore);
            assert_eq!(report.error, 0, "{driver}");
            assert!(report.resident <= report.managed);
            if report.managed == 0 && node.instance.used() == Use::default() && moved > 0 {
                break;
            }
        }
        assert_eq!(client.answer(), 0);
        assert_eq!((node.instance.used(), node.instance.card().used()), (Use::default(), 0), "{driver}");
        client.tell("exit");
        client.end();
    }
}
