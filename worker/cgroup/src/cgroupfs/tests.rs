//! Steps of the driver on plain directories, where no kernel enforces the limits.

use super::*;
use crate::Part;
use cgroups_rs::fs::Cgroup;
use cgroups_rs::fs::hierarchies::V2;
use std::path::PathBuf;

const LIMITS: Limits = Limits { memory_bytes: Some(1 << 26), pids: Some(16), cpu_millis: Some(1500) };

/// Files that the kernel shows in a new group of the unified tree.
fn fresh_v2_group(dir: &Path) -> CgroupPaths {
    fs::create_dir_all(dir).unwrap();
    for (file, value) in [
        ("memory.max", "max"),
        ("memory.swap.max", "max"),
        ("memory.oom.group", "0"),
        ("pids.max", "max"),
        ("cpu.max", "max 100000"),
    ] {
        fs::write(dir.join(file), value).unwrap();
    }
    CgroupPaths::V2 { dir: dir.to_owned() }
}

#[test]
fn on_v2_every_limit_is_written_and_read_back() {
    let temp = tempfile::tempdir().unwrap();
    let paths = fresh_v2_group(&temp.path().join("omni/a/model"));
    assert!(matches!(confirm(&LIMITS, &paths, 4096), Err(Error::LimitNotApplied { .. })));

    hierarchy::apply(&CgroupPaths::V2 { dir: temp.path().to_owned() }, "omni/a/model", &LIMITS, 4096).unwrap();
    confirm(&LIMITS, &paths, 4096).unwrap();

    for setting in LIMITS.settings(&paths, 4096).into_iter().chain(LIMITS.weight(&paths)) {
        let good = fs::read_to_string(&setting.file).unwrap();
        fs::write(&setting.file, "max").unwrap();
        match confirm(&LIMITS, &paths, 4096) {
            Err(Error::LimitNotApplied { file, wanted, found }) => {
                assert_eq!((file, wanted, found), (setting.file.clone(), setting.value, "max".to_owned()));
            }
            other => panic!("{}: {other:?}", setting.file.display()),
        }
        fs::write(&setting.file, good).unwrap();
    }
}

#[test]
fn controllers_are_passed_down_once_and_a_missing_one_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let (control, available) = (temp.path().join("cgroup.subtree_control"), temp.path().join("cgroup.controllers"));
    let table = [
        ("", "cpuset cpu io memory pids", &[][..], Ok("+cpu +memory +pids")),
        ("", "cpuset cpu io memory pids", &[PROCESSORS, DISKS], Ok("+cpu +memory +pids +cpuset +io")),
        ("cpuset cpu io memory pids", "cpuset cpu io memory pids", &[DISKS], Ok("cpuset cpu io memory pids")),
        ("cpu memory pids", "cpu memory pids", &[PROCESSORS, DISKS], Ok("cpu memory pids")),
        ("cpu", "cpuset cpu memory pids", &[PROCESSORS, DISKS], Ok("+memory +pids +cpuset")),
        ("", "cpuset cpu io pids", &[PROCESSORS], Err("memory")),
        ("", "cpuset", &[], Err("cpu, memory, pids")),
    ];
    for (enabled, offered, used, expected) in table {
        fs::write(&control, enabled).unwrap();
        fs::write(&available, offered).unwrap();
        match (pass_controllers(temp.path(), used), expected) {
            (Ok(()), Ok(written)) => assert_eq!(fs::read_to_string(&control).unwrap(), written),
            (Err(Error::ControllersMissing { missing, .. }), Err(names)) => assert_eq!(missing, names),
            (result, expected) => panic!("{enabled:?} of {offered:?}: {result:?}, not {expected:?}"),
        }
    }
}

/// On a hybrid host `/sys/fs/cgroup` is an ordinary tmpfs, and `cgroups-rs` accepts it.
#[test]
fn a_plain_directory_is_not_a_group() {
    let temp = tempfile::tempdir().unwrap();
    let plain = CgroupPaths::V2 { dir: temp.path().to_owned() };
    assert!(matches!(Cgroupfs::at(plain, "omni", true), Err(Error::NotACgroup { unified: true, .. })));
}

#[test]
fn the_unified_layout_on_a_hybrid_host_is_an_error_and_leaves_nothing() {
    let dir = PathBuf::from("/sys/fs/cgroup");
    if statfs(&dir).unwrap().filesystem_type() == CGROUP2_SUPER_MAGIC {
        // A unified host has no such trap: the same directory is a real group there.
        Cgroupfs::at(CgroupPaths::V2 { dir }, "omni", true).unwrap();
        return;
    }
    let parent = format!("omni-test-{}-trap", std::process::id());
    Cgroup::new(Box::new(V2::new()), format!("{parent}/a/model")).expect("the library is content");
    let made = dir.join(&parent).join("a/model");
    let error = check_file_systems(&CgroupPaths::V2 { dir: made.clone() }).unwrap_err();
    assert!(matches!(&error, Error::NotACgroup { dir, unified: true } if *dir == made), "{error}");

    // Even without the check of the mount, creation fails and cleans up.
    fs::remove_dir_all(dir.join(&parent)).unwrap();
    // The library has made it in the plain directory, where nothing reads it.
    let _ = fs::remove_file(dir.join("cgroup.subtree_control"));
    let driver = Cgroupfs {
        root: CgroupPaths::V2 { dir: dir.clone() },
        parent: parent.clone(),
        scopes: None,
        page: 4096,
        chooses: true,
    };
    driver.create(&GroupName::new("a", Part::Model).unwrap(), &LIMITS).unwrap_err();
    driver.remove_parent().unwrap();
    assert!(!dir.join(&parent).exists());
}
