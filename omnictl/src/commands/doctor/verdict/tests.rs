//! Kinds of machines, and what is said of each.

use omni_machine::{
    Card, Cgroups, Configuration, Disk, Folder, GpuFiles, Identity, Layout, Limits, Machine, Parts, Probe, Python,
    Role, Service, Uv,
};

use super::{Answers, Line, State, host, lines, serves};

const ALL: u64 = (1 << 41) - 1;

/// A virtual machine with control groups of version 2, as root, with everything but a GPU.
fn machine() -> Machine {
    let disk = Disk { free_bytes: 40 << 30, free_files: None, read_only: false, no_exec: false, is_memory: false };
    let folder =
        |(role, path): (Role, &str), disk| Folder { role, path: path.into(), exists: true, disk: Probe::Works(disk) };
    let memory = Disk { is_memory: true, ..disk };
    let namespaces = ["mnt", "pid", "ipc", "uts", "net", "cgroup", "user"];
    let python = |release: &str| Python {
        release: release.to_owned(),
        is_default: release == "3.11",
        is_named: false,
        found: match release {
            "3.11" => Probe::Works(("/usr/bin/python3.11".into(), "3.11.2".into())),
            _ => Probe::Fails("there is none".into()),
        },
    };
    Machine {
        kernel: "6.12.48+deb13-amd64".into(),
        identity: Identity { uid: 0, capabilities: ALL, confined: false },
        configuration: Configuration { file: Some("/etc/omni/omni.toml".into()), problem: None },
        cgroups: Cgroups {
            layout: Probe::Works(Layout::Unified),
            driver: Probe::Works(("systemd".into(), None)),
            limits: Probe::Works(()),
            processors: Probe::Works(8),
            confined: false,
        },
        parts: Parts {
            child: Probe::Works(()),
            namespaces: namespaces.map(|name| (name.to_owned(), Probe::Works(()))).into(),
            mounts: Probe::Works(()),
            meminfo: Probe::Works(()),
            cache: Probe::Works(()),
            seccomp: Probe::Works(()),
            landlock: Probe::Works(6),
        },
        sandbox: Probe::Works(()),
        limits: Limits {
            open_files: Some(524_288),
            connections: 12_000,
            process_ids: Some(4_194_304),
            watches: Some(65_536),
            watcher: Probe::Works(()),
        },
        folders: vec![
            folder((Role::Models, "/srv/models"), disk),
            folder((Role::State, "/var/lib/omni"), disk),
            folder((Role::Cache, "/var/cache/omni"), disk),
            folder((Role::Runtime, "/run/omni"), memory),
        ],
        uv: Some(Uv { path: "/usr/lib/omni/uv".into(), version: Probe::Works("uv 0.13.8".into()) }),
        pythons: ["3.9", "3.10", "3.11", "3.12"].map(python).into(),
        gpu: GpuFiles {
            driver: None,
            devices: ["nvidiactl", "nvidia-uvm"].map(|name| (name.to_owned(), Probe::Fails("not there".into()))).into(),
            libraries: Probe::Fails("there is no libcuda.so.1".into()),
            shim: true,
        },
    }
}

fn no_cards() -> Probe<Vec<Card>> {
    Probe::Fails("no NVIDIA driver can be used: libnvidia-ml.so.1: cannot open shared object file".into())
}

fn closed(cards: Probe<Vec<Card>>) -> Result<Service, String> {
    Ok(Service { cards, exposure: Vec::new() })
}

fn asked(machine: Machine, cards: Probe<Vec<Card>>) -> Vec<Line> {
    looked_at(machine, closed(cards))
}

fn looked_at(machine: Machine, service: Result<Service, String>) -> Vec<Line> {
    let machine = Ok(Box::new(machine));
    let lines = lines(&Answers::Programs { place: "/usr/lib/omni".into(), worker: true, machine, service }, None);
    for line in &lines {
        let is_ok = line.state == State::Ok;
        assert_eq!((line.cost.is_none(), line.mend.is_none()), (is_ok, is_ok), "{line:?}");
        assert!(line.needed || line.state != State::Missing, "{line:?}");
        assert!(!line.needed || line.state != State::Degraded, "{line:?}");
    }
    lines
}

/// All that is not ok.
fn wrong(lines: &[Line]) -> Vec<(&str, State)> {
    let bad = lines.iter().filter(|line| line.state != State::Ok);
    bad.map(|line| (line.check.as_str(), line.state)).collect()
}

fn find<'a>(lines: &'a [Line], check: &str) -> &'a Line {
    lines.iter().find(|line| line.check == check).unwrap_or_else(|| panic!("no line {check}"))
}

#[test]
fn a_virtual_machine_lacks_only_a_gpu() {
    let lines = asked(machine(), no_cards());
    assert_eq!(wrong(&lines), [("GPU driver", State::Degraded)]);
    assert_eq!(serves(&lines), Some(true));
    assert!(find(&lines, "GPU driver").mend.as_ref().unwrap().contains("without one: nothing"));
    assert_eq!(find(&lines, "control groups").found, "version 2: cpu, memory, pids");
    assert_eq!(find(&lines, "Python").found, "3.11.2 at /usr/bin/python3.11");
}

#[test]
fn a_hybrid_machine_without_a_capability_that_no_sandbox_needs_serves_all_the_same() {
    let mut hybrid = machine();
    hybrid.cgroups.layout = Probe::Works(Layout::Hybrid);
    let why = Some("the controllers are not in the unified tree".into());
    hybrid.cgroups.driver = Probe::Works(("cgroupfs".into(), why));
    hybrid.identity.capabilities = ALL & !(1 << 24);
    hybrid.cgroups.processors = Probe::Fails("there is no cpuset controller".into());
    hybrid.limits.open_files = Some(20_000);
    hybrid.limits.process_ids = Some(32_768);
    let lines = asked(hybrid, no_cards());
    let expected = ["processors of groups", "process ids", "GPU driver"].map(|check| (check, State::Degraded));
    assert_eq!(wrong(&lines), expected);
    assert_eq!(serves(&lines), Some(true));
    assert!(find(&lines, "control groups").found.starts_with("version 1, beside"));
    assert_eq!(find(&lines, "driver of groups").found, "cgroupfs: the controllers are not in the unified tree");
}

#[test]
fn a_capability_that_every_sandbox_needs_is_named() {
    let mut container = machine();
    container.identity.capabilities = ALL & !(1 << 19);
    let lines = asked(container, no_cards());
    assert_eq!(serves(&lines), Some(false));
    assert_eq!(find(&lines, "privileges").found, "root without CAP_SYS_PTRACE");
}

#[test]
fn a_container_without_privileges_lists_each_lack() {
    let mut container = machine();
    container.identity = Identity { uid: 0, capabilities: ALL, confined: true };
    container.cgroups.limits = Probe::Fails("cannot create /sys/fs/cgroup/omni-probe: Read-only file system".into());
    container.cgroups.processors = Probe::Untried("there is no control group for it".into());
    container.cgroups.confined = true;
    container.parts.meminfo = Probe::Fails("cannot open /dev/fuse: No such file or directory".into());
    container.parts.cache = Probe::Fails("attach the cache image: No such file or directory".into());
    container.parts.landlock = Probe::Fails("this kernel has none".into());
    container.sandbox = Probe::Untried("there is no control group for it".into());
    container.folders[0].exists = false;
    container.uv = None;
    let lines = asked(container, no_cards());
    let expected = [
        ("privileges", State::Missing),
        ("limits of groups", State::Missing),
        ("processors of groups", State::Unknown),
        ("FUSE", State::Missing),
        ("cache directories", State::Missing),
        ("Landlock", State::Degraded),
        ("sandbox", State::Unknown),
        ("models folder", State::Missing),
        ("uv", State::Degraded),
        ("GPU driver", State::Degraded),
    ];
    assert_eq!(wrong(&lines), expected);
    assert_eq!(serves(&lines), Some(false));
    assert!(find(&lines, "FUSE").mend.as_ref().unwrap().contains("--device /dev/fuse"));
    assert!(find(&lines, "control groups").found.ends_with("as a container sees it"));
}

#[test]
fn checks_that_need_root_are_unknown_to_others() {
    let untried = || Probe::Untried("only root may try it".into());
    let mut user = machine();
    user.identity = Identity { uid: 1000, capabilities: 0, confined: false };
    user.cgroups.limits = untried();
    user.cgroups.processors = Probe::Untried("only root may try it".into());
    user.parts.mounts = untried();
    user.sandbox = untried();
    let lines = asked(user, no_cards());
    let unknown = ["privileges", "limits of groups", "processors of groups", "mounts", "sandbox"]
        .map(|check| (check, State::Unknown));
    assert_eq!(wrong(&lines), [&unknown[..], &[("GPU driver", State::Degraded)]].concat());
    assert_eq!(serves(&lines), None);
    assert!(unknown.iter().all(|(check, _)| find(&lines, check).mend.as_deref() == Some("sudo omnictl doctor")));
}

#[test]
fn an_old_driver_is_named_with_what_it_lacks() {
    let mut old = machine();
    old.gpu.driver = Some("418.226.00".into());
    let symbol = "no NVIDIA driver can be used: undefined symbol: nvmlDeviceGetComputeRunningProcesses_v2";
    let lines = asked(old, Probe::Fails(symbol.into()));
    assert_eq!(wrong(&lines), [("GPU driver", State::Degraded)]);
    let line = find(&lines, "GPU driver");
    assert_eq!(line.found, symbol);
    assert!(line.mend.as_ref().unwrap().contains("418.226.00"), "{line:?}");
}

#[test]
fn a_card_without_unified_memory_or_its_device_file() {
    let card = |index: u32, unified| Card { index, minor: index, name: "H100".into(), total_bytes: 80 << 30, unified };
    let mut two = machine();
    let works = |name: &str| (name.to_owned(), Probe::Works(()));
    let uvm = ("nvidia-uvm".to_owned(), Probe::Fails("not there".into()));
    two.gpu = GpuFiles {
        driver: Some("570.86".into()),
        devices: vec![works("nvidia0"), works("nvidiactl"), uvm],
        libraries: Probe::Works("/usr/lib/x86_64-linux-gnu".into()),
        shim: true,
    };
    let cards = vec![card(0, Probe::Works(())), card(1, Probe::Fails("it has no concurrent managed access".into()))];
    let lines = asked(two, Probe::Works(cards));
    assert_eq!(
        wrong(&lines),
        [("GPU 1", State::Degraded), ("nvidia1", State::Degraded), ("nvidia-uvm", State::Degraded)]
    );
    assert_eq!(serves(&lines), Some(true));
    assert_eq!(find(&lines, "GPU driver").found, "570.86, cards: 2");
    assert_eq!(find(&lines, "GPU 0").found, "H100, 80GiB: memory can be moved");
}

#[test]
fn every_problem_is_reported_alone() {
    type Break = fn(&mut Machine);
    type Change = fn(&mut Disk);
    let disk = |machine: &mut Machine, place: usize, change: Change| {
        let Probe::Works(disk) = &mut machine.folders[place].disk else { panic!("a disk") };
        change(disk);
    };
    let full: Break = |machine| machine.folders[1].disk = Probe::Fails("Stale file handle".into());
    let table: [(&str, State, Break); 11] = [
        ("driver of groups", State::Missing, |machine| machine.cgroups.driver = Probe::Fails("no system bus".into())),
        ("configuration", State::Missing, |machine| machine.configuration.problem = Some("line 3: unknown key".into())),
        ("privileges", State::Missing, |machine| machine.identity.capabilities = ALL & !(1 << 21)),
        ("kernel", State::Degraded, |machine| machine.kernel = "5.10.0-26-amd64".into()),
        ("kernel", State::Unknown, |machine| machine.kernel = "x".into()),
        ("open files", State::Degraded, |machine| machine.limits.open_files = Some(1024)),
        ("watched directories", State::Degraded, |machine| machine.limits.watches = Some(100)),
        ("watchers", State::Missing, |machine| machine.limits.watcher = Probe::Fails("EMFILE".into())),
        ("net namespace", State::Missing, |machine| machine.parts.namespaces[4].1 = Probe::Fails("EPERM".into())),
        ("Python", State::Missing, |machine| machine.pythons.clear()),
        ("state folder", State::Unknown, full),
    ];
    let disks: [(&str, State, usize, Change); 6] = [
        ("state folder", State::Missing, 1, |disk| disk.free_bytes = 1 << 20),
        ("state folder", State::Missing, 1, |disk| disk.read_only = true),
        ("cache folder", State::Degraded, 2, |disk| disk.free_files = Some(5000)),
        ("cache folder", State::Missing, 2, |disk| disk.free_files = Some(3)),
        ("cache folder, execution", State::Degraded, 2, |disk| disk.no_exec = true),
        ("runtime folder", State::Degraded, 3, |disk| disk.is_memory = false),
    ];
    let said = |machine: Machine, check: &str, state: State| {
        let lines = asked(machine, no_cards());
        assert_eq!(wrong(&lines), [(check, state), ("GPU driver", State::Degraded)]);
        assert_eq!(serves(&lines) == Some(false), state == State::Missing, "{check}");
    };
    for (check, state, break_it) in table {
        let mut broken = machine();
        break_it(&mut broken);
        said(broken, check, state);
    }
    for (check, state, place, change) in disks {
        let mut broken = machine();
        disk(&mut broken, place, change);
        said(broken, check, state);
    }
}

#[test]
fn another_python_than_the_usual_one_is_not_enough_for_all_models() {
    let mut new = machine();
    new.pythons[2].found = Probe::Fails("there is none".into());
    new.pythons[3].found = Probe::Works(("/usr/bin/python3.12".into(), "3.12.3".into()));
    let lines = asked(new, no_cards());
    let line = find(&lines, "Python");
    assert_eq!((line.state, line.needed), (State::Degraded, false));
    assert!(line.mend.as_ref().unwrap().contains("python3.11"), "{line:?}");
}

#[test]
fn a_machine_without_the_nodes_programs_reports_only_that() {
    let lines = lines(&Answers::NoPrograms, None);
    assert_eq!(wrong(&lines), [("programs", State::Missing)]);
    let silent = Answers::Programs {
        place: "/usr/lib/omni".into(),
        worker: true,
        machine: Err("it did not answer".into()),
        service: closed(no_cards()),
    };
    assert_eq!(wrong(&super::lines(&silent, None)), [("programs", State::Missing)]);
}

#[test]
fn open_listeners_get_the_warnings_of_a_start() {
    let exposure = ["anyone who reaches 0.0.0.0:80 may ask any model", "requests to 0.0.0.0:80 can be read"];
    let service = Service { cards: no_cards(), exposure: exposure.map(str::to_owned).into() };
    let lines = looked_at(machine(), Ok(service));
    let told: Vec<_> = lines.iter().filter(|line| line.check == "listeners").map(|line| &*line.found).collect();
    assert_eq!(told, exposure);
    let degraded = ["listeners", "listeners", "GPU driver"].map(|check| (check, State::Degraded));
    assert_eq!((wrong(&lines), serves(&lines)), (degraded.into(), Some(true)));
    let running = |warnings: &[String]| {
        let found = host::listeners(&closed(no_cards()), Some(warnings));
        found.into_iter().map(|line| (line.state, line.found)).collect::<Vec<_>>()
    };
    assert!(matches!(&running(&[])[..], [(State::Ok, found)] if found.ends_with("(of the node that runs)")));
    let by_unit = "anyone who reaches 0.0.0.0:80 may ask any model".to_owned();
    assert_eq!(running(std::slice::from_ref(&by_unit)), [(State::Degraded, by_unit)], "whatever the file says");
    let silent = looked_at(machine(), Err("it did not answer".into()));
    assert_eq!(wrong(&silent), ["listeners", "GPU driver"].map(|check| (check, State::Unknown)));
}

#[test]
fn an_old_landlock_costs_what_the_hosts_network_then_opens() {
    let mut machine = machine();
    for (version, state) in [(5, State::Degraded), (6, State::Ok), (7, State::Ok)] {
        machine.parts.landlock = Probe::Works(version);
        let lines = asked(machine.clone(), no_cards());
        let line = lines.iter().find(|line| line.check == "Landlock").unwrap();
        assert_eq!(line.state, state, "{line:?}");
        assert!(line.found.starts_with(&format!("version {version}")), "{line:?}");
    }
}
