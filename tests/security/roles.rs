//! Roles at the control socket: processes of other users and groups, with `omnictl`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::{Node, PATIENCE, program, wait_for};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const ECHO: &[(&str, &str)] = &[("model.py", "def handle_request(request, context):\n    return request.body.json\n")];
/// Numbers that have no names here.
const SOMEBODY: u32 = 71_000;
const ADMINS: u32 = 71_001;

/// `omnictl`, executable for all users.
struct Program(TempDir);

impl Program {
    fn new() -> Self {
        let folder = TempDir::with_prefix("omni-roles").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        fs::copy(program("omnictl"), folder.path().join("omnictl")).unwrap();
        Self(folder)
    }

    /// The exit code and standard error of a command by a user with these groups, the first of them the effective one.
    fn run(&self, node: &Node, uid: u32, groups: &[u32], arguments: &[&str]) -> (i32, String) {
        let (first, rest) = groups.split_first().unwrap();
        let rest: Vec<String> = rest.iter().map(u32::to_string).collect();
        let rest = if rest.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={}", rest.join(",")) };
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={first}")).arg(rest).arg("--inh-caps=-all");
        command.arg(self.0.path().join("omnictl")).arg("--socket").arg(node.control_socket()).args(arguments);
        let output = command.stdin(Stdio::null()).output().expect("setpriv runs");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }
}

#[test]
fn roles_separate_reading_from_changing() {
    let node = Node::builder().config(&format!("admin-group = {ADMINS}\n")).model("echo", ECHO).start();
    let file = fs::metadata(node.control_socket()).unwrap();
    let (own, readers) = (file.uid(), file.gid());
    assert_eq!(file.mode() & 0o777, 0o660);
    let omnictl = Program::new();
    let looks: &[&[&str]] =
        &[&["list"], &["status"], &["status", "echo"], &["logs", "echo"], &["history", "echo"], &["top", "--once"]];
    let changes: &[&[&str]] = &[&["run", "echo", "1"], &["rollback", "echo"], &["stop", "echo"], &["start", "echo"]];

    // Read-only access, by the effective group or by a supplementary one.
    for groups in [&[readers][..], &[SOMEBODY, 4, readers], &[SOMEBODY, readers, 5]] {
        for arguments in looks {
            let said = omnictl.run(&node, SOMEBODY, groups, arguments);
            assert_eq!(said.0, 0, "{arguments:?}: {said:?}");
        }
        for arguments in changes.iter().chain([&["upgrade"][..]].iter()) {
            let (code, said) = omnictl.run(&node, SOMEBODY, groups, arguments);
            assert_eq!(code, 7, "{arguments:?}: {said}");
            let who = format!(
                "is for root, user {own} or group `{ADMINS}`; you are user {SOMEBODY} in the groups {}",
                groups[0]
            );
            assert!(said.contains(&who) && said.contains("hint: "), "{said}");
        }
    }
    assert_eq!(node.model("echo").instances.len(), 0, "nothing was started");

    // Full access: a member of both groups, the scheduler's own user, root.
    for (uid, groups) in [(SOMEBODY, &[SOMEBODY, readers, ADMINS][..]), (own, &[readers]), (0, &[0])] {
        for arguments in looks {
            // The model is on its way up, and its status says so.
            let said = omnictl.run(&node, uid, groups, arguments);
            assert!(said.0 == 0 || (arguments == &["status", "echo"] && said.0 == 3), "{uid}: {arguments:?}: {said:?}");
        }
        for arguments in changes {
            let said = omnictl.run(&node, uid, groups, arguments);
            // There is nothing to roll back to.
            assert!(said.0 == 0 || (arguments[0] == "rollback" && said.0 != 7), "{uid}: {arguments:?}: {said:?}");
        }
    }

    // Without any access the kernel refuses the connection.
    for groups in [&[SOMEBODY][..], &[ADMINS], &[0]] {
        assert_eq!(omnictl.run(&node, SOMEBODY, groups, &["list"]).0, 5, "{groups:?}");
    }
    node.stop();
}

#[test]
fn roles_survive_a_takeover_and_a_recreated_socket() {
    let mut node = Node::builder().config(&format!("admin-group = {ADMINS}\n")).model("echo", ECHO).start();
    let readers = fs::metadata(node.control_socket()).unwrap().gid();
    let omnictl = Program::new();
    let roles = |node: &Node| {
        let code = |groups: &[u32], arguments: &[&str]| omnictl.run(node, SOMEBODY, groups, arguments).0;
        assert_eq!(code(&[readers], &["list"]), 0);
        assert_eq!(code(&[readers], &["stop", "echo"]), 7);
        assert_eq!(code(&[readers, ADMINS], &["stop", "echo"]), 0);
    };
    node.upgrade();
    roles(&node);
    fs::remove_file(node.control_socket()).unwrap();
    wait_for("the socket to be made again", PATIENCE, || (node.omnictl(["list"]).code == 0).then_some(()));
    let file = fs::metadata(node.control_socket()).unwrap();
    assert_eq!((file.mode() & 0o777, file.gid()), (0o660, readers));
    roles(&node);
    // Without the group only root and the scheduler's user have full access; read access is unchanged.
    node.configure("admin-group = 71002\n");
    node.upgrade();
    assert_eq!(omnictl.run(&node, SOMEBODY, &[readers, ADMINS], &["stop", "echo"]).0, 7);
    assert_eq!(omnictl.run(&node, SOMEBODY, &[readers], &["list"]).0, 0);
    node.stop();
}
