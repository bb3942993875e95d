//! Instances from a zygote: as apart from each other as others are, wherever it matters, and their ends as exact.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test")]

#[path = "sandbox_support/mod.rs"]
mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::instance::{FromWorker, LogStream, ToWorker};
use std::fs;
use support::{Host, Instance, MIB, Scheduler, Setup, Zygote, is_gone, model, rounds, wait_until};

const WELL: &str = "";
const KILLED: ExitCause = ExitCause::Signaled { signal: 9 };

/// An instance of the zygote, ready.
fn ready(host: &Host, zygote: &Zygote) -> (Instance, Scheduler) {
    let instance = host.start(zygote.model(WELL));
    let mut scheduler = instance.connect();
    scheduler.ready();
    (instance, scheduler)
}

fn pss(scheduler: &mut Scheduler) -> Option<u64> {
    scheduler.send(&ToWorker::Stats);
    match scheduler.next() {
        FromWorker::Stats(stats) => stats.pss_bytes,
        other => panic!("{other:?}"),
    }
}

/// Log of the instance by now, once there is some. It may come after the message that it is ready.
fn told(scheduler: &mut Scheduler) -> serde_json::Value {
    scheduler.ready();
    let fact = |scheduler: &Scheduler| scheduler.lines.iter().find_map(|line| serde_json::from_str(&line.text).ok());
    heard("the instance tells", scheduler, |scheduler| fact(scheduler).is_some());
    fact(scheduler).unwrap()
}

/// Waits for lines of the log, which come beside the answers to questions.
fn heard(what: &str, scheduler: &mut Scheduler, is_there: impl Fn(&Scheduler) -> bool) {
    wait_until(what, || {
        let found = is_there(scheduler);
        if !found {
            pss(scheduler);
        }
        found
    });
}

fn end(mut instance: Instance, scheduler: Scheduler) {
    scheduler.send(&ToWorker::Stop { grace_ms: 20_000 });
    let (lines, cause) = scheduler.run();
    assert_eq!(cause, ExitCause::Exited { code: 0 }, "{lines:?}");
    assert_eq!(instance.wait(), ExitCause::Exited { code: 0 });
}

#[test]
fn an_instance_is_forked_and_moved_before_it_begins() {
    let host = Host::new();
    let code = "import base64\ntell(preloaded='colorsys' in PRELOADED, group=open('/proc/self/cgroup').read(), \
                pid=os.getpid(), session=os.getsid(0))\n";
    let zygote = host.zygote(&format!("PRELOADED = list(sys.modules)\n{code}"), &["colorsys"], 256 * MIB);
    let instance = host.start(zygote.model(WELL));
    let mut scheduler = instance.connect();
    let fact = told(&mut scheduler);
    assert_eq!(fact["preloaded"], true);
    assert_eq!(fact["pid"], fact["session"], "it has a session of its own");
    let pid = scheduler.welcome.engine_pid.unwrap();
    assert_eq!(instance.group_pids(), [pid]);
    assert_eq!(zygote.pids().len(), 1, "the zygote is alone in its group");
    assert!(pss(&mut scheduler).is_some(), "what it shares is measured");
    end(instance, scheduler);
}

#[test]
fn an_instance_that_asks_for_none_shares_nothing() {
    let host = Host::new();
    let instance = host.start(model(WELL));
    let mut scheduler = instance.connect();
    scheduler.ready();
    assert_eq!(pss(&mut scheduler), None);
    end(instance, scheduler);
}

#[test]
fn every_end_has_its_cause() {
    let host = Host::new();
    let code = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), act())).start()\n";
    let table = [
        ("os._exit(3)", ExitCause::Exited { code: 3 }),
        ("os.abort()", ExitCause::Signaled { signal: 6 }),
        ("os.kill(os.getpid(), 15)", ExitCause::Signaled { signal: 15 }),
        ("os.kill(os.getpid(), 40)", ExitCause::Signaled { signal: 40 }),
        ("bytearray(256 << 20)", ExitCause::OomKilled),
        ("(os.fork() == 0 and bytearray(256 << 20), time.sleep(3600))", ExitCause::OomKilled),
    ];
    for (act, cause) in table {
        let zygote = host.zygote(&format!("def act():\n    {act}\n{code}"), &[], 96 * MIB);
        for round in 0..rounds(3, 50) {
            let mut instance = host.start(zygote.model(WELL));
            let (lines, ended) = instance.connect().run();
            assert_eq!(ended, cause, "{act}, round {round}: {lines:?}");
            assert_eq!(instance.wait(), cause, "{act}, round {round}");
        }
        assert_eq!(zygote.pids().len(), 1, "{act}: the zygote does not notice");
    }
}

#[test]
fn an_import_that_fails_is_permanent() {
    let host = Host::new();
    let zygote = host.zygote("raise ValueError('no')\n", &[], 256 * MIB);
    let mut instance = host.start(zygote.model(WELL));
    let (_, cause) = instance.connect().run();
    assert_eq!(cause, ExitCause::Exited { code: 78 });
    assert_eq!(instance.wait(), ExitCause::Exited { code: 78 });
}

#[test]
fn the_end_of_an_instance_leaves_its_siblings() {
    let host = Host::new();
    let zygote = host.zygote("import subprocess\nsubprocess.Popen(['sleep', '3600'])\n", &[], 128 * MIB);
    let (mut one, first) = ready(&host, &zygote);
    let (two, mut second) = ready(&host, &zygote);
    let pids = one.group_pids();
    assert_eq!(pids.len(), 2);
    kill(Pid::from_raw(first.welcome.engine_pid.unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!(first.run().1, KILLED);
    assert_eq!(one.wait(), KILLED);
    assert!(pids.into_iter().all(is_gone), "its own children go with it");
    assert!(pss(&mut second).is_some());
    assert_eq!(two.group_pids().len(), 2);
    second.send(&ToWorker::Kill);
    assert_eq!(second.run().1, KILLED);
}

#[test]
fn limits_are_those_of_the_instance() {
    let host = Host::new();
    let code = "n = 0\ntry:\n    while n < 200:\n        if os.fork() == 0: os.execv('/bin/sleep', ['sleep', '3600'])\n        n += 1\n\
                except OSError: pass\ntell(children=n)\n";
    let zygote = host.zygote(code, &[], 256 * MIB);
    let start = || host.start(Setup { pids: 16, ..zygote.model(WELL) });
    let (one, two) = (start(), start());
    for instance in [&one, &two] {
        assert_eq!(
            told(&mut instance.connect())["children"],
            14,
            "each has its own sixteen, of which the engine takes two"
        );
    }
}

#[test]
fn each_sees_its_own_memory() {
    let host = Host::new();
    let code = "kept = bytearray(SIZE)\nfor i in range(0, SIZE, 4096): kept[i] = 1\n\
                free = [l for l in open('/proc/meminfo') if l.startswith(('MemTotal', 'MemFree'))]\n\
                tell(total=int(free[0].split()[1]), free=int(free[1].split()[1]))\n";
    let size =
        "import random\nSIZE = (128 << 20) if os.path.exists('/tmp/small') else (4 << 20)\nopen('/tmp/small', 'w')\n";
    let zygote = host.zygote(&format!("{size}{code}"), &[], 256 * MIB);
    let start = || host.start(zygote.model(WELL));
    let small = start();
    let small = told(&mut small.connect());
    let large = start();
    let large = told(&mut large.connect());
    let kib = |fact: &serde_json::Value, name: &str| fact[name].as_u64().unwrap();
    assert_eq!((kib(&small, "total"), kib(&large, "total")), (256 * 1024, 256 * 1024));
    assert!(kib(&small, "free") > 200 * 1024, "{small}");
    assert!((64 * 1024..144 * 1024).contains(&kib(&large, "free")), "{large}");
}

#[test]
fn randomness_is_not_shared_and_output_goes_to_its_own_log() {
    let host = Host::new();
    let code = "import random, secrets\ntell(own=os.getpid(), random=random.random(), secret=secrets.token_hex(8))\n\
                print('to stderr', os.getpid(), file=sys.stderr)\n";
    let zygote = host.zygote(code, &["random", "secrets"], 256 * MIB);
    let mut seen = vec![];
    for _ in 0..3 {
        let (instance, mut scheduler) = ready(&host, &zygote);
        let fact = told(&mut scheduler);
        let own = format!("to stderr {}", fact["own"]);
        let is_own = |scheduler: &Scheduler| {
            scheduler.lines.iter().any(|line| line.stream == LogStream::Stderr && line.text == own)
        };
        heard("it writes to its standard error", &mut scheduler, is_own);
        seen.push(fact);
        end(instance, scheduler);
    }
    for name in ["random", "secret"] {
        assert!(seen[0][name] != seen[1][name] && seen[1][name] != seen[2][name], "{seen:?}");
    }
}

#[test]
fn output_of_preloading_is_sent_once() {
    let host = Host::new();
    let zygote = host.zygote("import this\n", &["this"], 256 * MIB);
    let zen = |scheduler: &Scheduler| scheduler.lines.iter().filter(|line| line.text.contains("Tim Peters")).count();
    let (_one, mut first) = ready(&host, &zygote);
    heard("the first instance tells it", &mut first, |first| zen(first) > 0);
    let (_two, second) = ready(&host, &zygote);
    assert_eq!((zen(&first), zen(&second)), (1, 0));
}

#[test]
fn processes_threads_and_loops_work_in_an_instance() {
    let host = Host::new();
    let code = "import asyncio, concurrent.futures, multiprocessing, threading\n\
                def double(n): return 2 * n\n\
                async def soon(): await asyncio.sleep(0); return 4\n\
                def setup(context):\n\
                \x20   with multiprocessing.Pool(2) as pool: processes = pool.map(double, [1, 2])\n\
                \x20   with concurrent.futures.ThreadPoolExecutor(2) as threads: threads = list(threads.map(double, [3]))\n\
                \x20   tell(processes=processes, threads=threads, loop=asyncio.run(soon()), \
                main=threading.current_thread() is threading.main_thread())\n";
    let zygote = host.zygote(code, &["asyncio", "multiprocessing", "concurrent.futures"], 256 * MIB);
    for _ in 0..2 {
        let instance = host.start(zygote.model(WELL));
        let mut scheduler = instance.connect();
        let fact = told(&mut scheduler);
        assert_eq!(fact, serde_json::json!({"processes": [2, 4], "threads": [6], "loop": 4, "main": true}));
        end(instance, scheduler);
    }
}

/// Says in the log of the instance why, and the instance is as good as ever.
fn starts_without(preload: &[&str], files: &str, why: &str) {
    let host = Host::new();
    let mut zygote = host.zygote(files, preload, 256 * MIB);
    let instance = host.start(zygote.model(WELL));
    let mut scheduler = instance.connect();
    scheduler.ready();
    assert_eq!(pss(&mut scheduler), None);
    let note = scheduler.lines.iter().find(|line| line.stream == LogStream::Worker).unwrap();
    assert!(note.text.starts_with("started without the zygote: ") && note.text.contains(why), "{note:?}");
    end(instance, scheduler);
    assert_eq!(zygote.wait(), Some(ExitCause::Exited { code: 78 }));
    assert!(!zygote.spec.socket.exists());
}

#[test]
fn a_module_that_is_not_there() {
    starts_without(&["not_there"], "", "cannot import not_there");
}

#[test]
fn a_module_that_ends_the_interpreter() {
    starts_without(&["model"], "if 'omni._engine.zygote' in sys.modules: sys.exit(0)\n", "cannot import model");
}

#[test]
fn a_module_that_starts_a_thread() {
    let code = "import threading, time\nif 'omni._engine.zygote' in sys.modules:\n    \
                threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n";
    starts_without(&["model"], code, "have started threads");
}

#[test]
fn a_zygote_that_does_not_answer_is_not_waited_for() {
    let host = Host::new();
    let stopped = "import signal\nif 'omni._engine.zygote' in sys.modules:\n    \
                   os.register_at_fork(before=lambda: open('/tmp/forks', 'a').write('x') and os.path.getsize('/tmp/forks') > 1 and signal.pause())\n";
    let zygote = host.zygote(stopped, &["model"], 256 * MIB);
    let instance = host.start(zygote.model(WELL));
    let mut scheduler = instance.connect();
    scheduler.ready();
    let note = scheduler.lines.iter().find(|line| line.stream == LogStream::Worker).unwrap();
    assert!(note.text.contains("did not fork in time"), "{note:?}");
    end(instance, scheduler);
}

#[test]
fn a_stop_and_a_kill_while_the_zygote_imports() {
    let host = Host::new();
    let slow = "import time\nif 'omni._engine.zygote' in sys.modules: time.sleep(3600)\n";
    let zygote = host.zygote(slow, &["model"], 256 * MIB);
    for (message, cause) in
        [(ToWorker::Stop { grace_ms: 20_000 }, ExitCause::Exited { code: 0 }), (ToWorker::Kill, KILLED)]
    {
        let mut instance = host.start(zygote.model(WELL));
        let scheduler = instance.connect();
        scheduler.send(&message);
        assert_eq!(scheduler.run().1, cause);
        assert_eq!(instance.wait(), cause);
    }
    wait_until("the zygote is there still, alone in its group", || zygote.pids().len() == 1);
}

#[test]
fn a_killed_zygote_leaves_its_instances() {
    let host = Host::new();
    let mut zygote = host.zygote(WELL, &[], 256 * MIB);
    let (instance, mut scheduler) = ready(&host, &zygote);
    kill(Pid::from_raw(zygote.pids()[0]), Signal::SIGKILL).unwrap();
    wait_until("it takes no more callers", || !zygote.spec.socket.exists());
    assert!(pss(&mut scheduler).is_some());
    let other = host.start(zygote.model(WELL));
    let mut alone = other.connect();
    alone.ready();
    assert_eq!(pss(&mut alone), None, "without a zygote it starts alone");
    end(other, alone);
    end(instance, scheduler);
    assert_eq!(zygote.wait(), Some(KILLED));
}

#[test]
fn a_lost_zygote_worker_ends_all_and_is_reported_as_lost() {
    let host = Host::new();
    let mut zygote = host.zygote(WELL, &[], 256 * MIB);
    let (mut instance, scheduler) = ready(&host, &zygote);
    zygote.worker.kill().unwrap();
    assert_eq!(scheduler.run().1, ExitCause::WorkerLost);
    assert_eq!(instance.wait(), ExitCause::WorkerLost);
    assert_eq!(zygote.wait(), None);
}

#[test]
fn a_lost_worker_of_an_instance_takes_its_process_alone() {
    let host = Host::new();
    let zygote = host.zygote(WELL, &[], 256 * MIB);
    let (mut one, _first) = ready(&host, &zygote);
    let (two, mut second) = ready(&host, &zygote);
    one.signal_worker(Signal::SIGKILL);
    one.worker.wait().unwrap();
    wait_until("its process goes", || one.group_pids().is_empty());
    assert!(pss(&mut second).is_some());
    end(two, second);
}

#[test]
fn memory_that_the_zygote_lacks_ends_the_zygote_alone() {
    let host = Host::new();
    let eats = "if 'omni._engine.zygote' in sys.modules: x = bytearray(256 << 20)\n";
    let mut zygote = host.zygote(eats, &["model"], 64 * MIB);
    let instance = host.start(zygote.model(WELL));
    let mut scheduler = instance.connect();
    scheduler.ready();
    assert_eq!(pss(&mut scheduler), None);
    end(instance, scheduler);
    assert_eq!(zygote.wait(), Some(KILLED));
}

#[test]
fn many_cycles_leave_nothing() {
    let host = Host::new();
    let mut zygote = host.zygote(WELL, &["json"], 256 * MIB);
    let (kept, mut scheduler) = ready(&host, &zygote);
    let files = |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let keeper = zygote.worker.id();
    let before = (files(keeper), files(zygote.pids()[0].cast_unsigned()));
    for round in 0..rounds(50, 500) {
        let (instance, scheduler) = ready(&host, &zygote);
        if round % 2 == 0 {
            end(instance, scheduler);
        } else {
            scheduler.send(&ToWorker::Kill);
            assert_eq!(scheduler.run().1, KILLED);
        }
    }
    wait_until("every caller has left", || files(keeper) == before.0);
    assert_eq!(files(zygote.pids()[0].cast_unsigned()), before.1);
    assert!(pss(&mut scheduler).is_some());
    end(kept, scheduler);
    kill(Pid::from_raw(keeper.cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(zygote.wait(), Some(ExitCause::Exited { code: 0 }));
}
