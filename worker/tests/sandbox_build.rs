//! Role `build`: a command's output and exit code pass through; the host does not.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "sandbox_support/mod.rs"]
mod support;

use omni_sandbox::Bind;
use std::fs;
use std::os::unix::fs::chown;
use std::process::Output;
use support::Host;

fn text(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

#[test]
fn output_and_exit_code_pass_through() {
    let host = Host::new();
    let output = host.build(&["/bin/sh", "-c", "echo out; echo err >&2; exit 7"], |_| {});
    assert_eq!(text(&output), ("out\n".into(), "err\n".into(), Some(7)));
    let output = host.build(&["/bin/sh", "-c", "kill -TERM $$"], |_| {});
    assert_eq!(output.status.code(), Some(128 + 15));
}

#[test]
fn a_failed_start_is_reported() {
    let host = Host::new();
    let (_, stderr, code) = text(&host.build(&["/usr/bin/no-such-program"], |_| {}));
    assert_eq!(code, Some(125));
    assert!(stderr.contains("could not be started: execute /usr/bin/no-such-program: ENOENT"), "{stderr}");
}

#[test]
fn too_much_memory_is_reported() {
    let host = Host::new();
    let eat = ["/bin/sh", "-c", "x=0123456789abcdef; while :; do x=$x$x; done"];
    let (_, stderr, code) = text(&host.build(&eat, |_| {}));
    assert_eq!(code, Some(137));
    assert!(stderr.contains("the build was killed for exceeding its memory limit"), "{stderr}");
}

#[test]
fn a_model_writes_where_it_may_and_nowhere_else() {
    let host = Host::new();
    let [open, closed] = ["open", "closed"].map(|name| host.dir.path().join(name));
    for dir in [&open, &closed] {
        fs::create_dir(dir).unwrap();
    }
    let script = format!(
        "echo kept > {open}/file; (echo x > {closed}/file) 2>/dev/null && echo WROTE; ls /etc/resolv.conf; \
         (echo x > /usr/x) 2>/dev/null && echo WROTE; cat /proc/self/status | grep CapEff",
        open = open.display(),
        closed = closed.display()
    );
    let output = host.build(&["/bin/sh", "-c", &script], |sandbox| {
        for dir in [&open, &closed] {
            chown(dir, Some(sandbox.uid), Some(sandbox.gid)).unwrap();
            let writable = dir == &open;
            sandbox.binds.push(Bind { source: dir.clone(), target: dir.clone(), writable });
        }
    });
    let (stdout, stderr, code) = text(&output);
    assert_eq!(stdout, "/etc/resolv.conf\nCapEff:\t0000000000000000\n", "{stderr}");
    assert_eq!(code, Some(0));
    assert_eq!(fs::read_to_string(open.join("file")).unwrap(), "kept\n");
    assert!(!closed.join("file").exists());
}

#[test]
fn processes_left_running_end_with_the_sandbox() {
    let host = Host::new();
    let output = host.build(&["/bin/sh", "-c", "sleep 3600 </dev/null >/dev/null 2>&1 & exit 0"], |_| {});
    assert_eq!(output.status.code(), Some(0)); // `build` has removed the group, which works only when it is empty
}
