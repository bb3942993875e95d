//! The host's tree of control groups, parsed from `/proc/self/mountinfo` (proc_pid_mountinfo(5)). Pure.

use crate::{CgroupPaths, Error};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Controllers that a model needs in the unified tree.
pub(crate) const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];

/// Controller that confines busy instances to processors, where the tree has it and this process may.
pub(crate) const PROCESSORS: &str = "cpuset";

/// Controller that bounds an instance's writes, where the unified tree has it.
pub(crate) const DISKS: &str = "io";

/// Mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Mount<'a> {
    point: PathBuf,
    unified: bool,
    /// Options of the superblock: on v1, the names of the hierarchy's controllers are among them.
    options: &'a str,
}

/// Paths of the root group, from the text of `/proc/self/mountinfo`; `controllers` returns the content of
/// `cgroup.controllers` in the root of a mounted v2 tree.
///
/// # Errors
/// [`Error::NoHierarchy`] names what is missing from both layouts.
pub(crate) fn root_group(mountinfo: &str, controllers: impl Fn(&Path) -> String) -> Result<CgroupPaths, Error> {
    let mounts: Vec<Mount<'_>> = mountinfo.lines().filter_map(parse).collect();
    let unified = mounts.iter().find(|mount| mount.unified).map(|mount| mount.point.clone());
    if let Some(dir) = &unified {
        let available = controllers(dir);
        if NEEDED.iter().all(|needed| available.split_ascii_whitespace().any(|name| name == *needed)) {
            return Ok(CgroupPaths::V2 { dir: dir.clone() });
        }
    }
    let find = |controller: &'static str| of_version_1(&mounts, controller).ok_or(controller);
    match (find("memory"), find("pids"), find("cpu"), find("cpuacct")) {
        (Ok(memory), Ok(pids), Ok(cpu), Ok(cpuacct)) => {
            Ok(CgroupPaths::V1 { memory, pids, cpu, cpuacct, unified, cpuset: find(PROCESSORS).ok() })
        }
        (memory, pids, cpu, cpuacct) => {
            let v1: Vec<_> = [memory, pids, cpu, cpuacct].into_iter().filter_map(Result::err).collect();
            let v2 = if unified.is_some() { "lacks cpu, memory or pids" } else { "is not mounted" };
            Err(Error::NoHierarchy {
                missing: format!("the unified tree {v2}, and of version 1 {} is not mounted", v1.join(", ")),
            })
        }
    }
}

/// Mount point of a controller of version 1.
pub(crate) fn hierarchy(mountinfo: &str, controller: &str) -> Option<PathBuf> {
    of_version_1(&mountinfo.lines().filter_map(parse).collect::<Vec<_>>(), controller)
}

fn of_version_1(mounts: &[Mount<'_>], controller: &str) -> Option<PathBuf> {
    let has = |mount: &&Mount<'_>| !mount.unified && mount.options.split(',').any(|option| option == controller);
    mounts.iter().find(has).map(|mount| mount.point.clone())
}

/// Parses a line, when it is a mount of control groups: `31 23 0:28 / /sys/fs/cgroup/memory rw,relatime shared:9 -
/// cgroup cgroup rw,memory`.
fn parse(line: &str) -> Option<Mount<'_>> {
    let (before, after) = line.split_once(" - ")?;
    let point = before.split(' ').nth(4)?;
    let mut after = after.split(' ');
    let unified = match after.next()? {
        "cgroup2" => true,
        "cgroup" => false,
        _ => return None,
    };
    let options = after.nth(1)?;
    Some(Mount { point: unescape(point), unified, options })
}

/// Decodes space, tab, newline and backslash, which are written as three octal digits after a backslash.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .and_then(|digits| str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:10 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const UNIFIED: &str = "26 22 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn v1(unified: Option<&str>) -> CgroupPaths {
        let at = |name: &str| Path::new("/sys/fs/cgroup").join(name);
        CgroupPaths::V1 {
            memory: at("memory"),
            pids: at("pids"),
            cpu: at("cpu,cpuacct"),
            cpuacct: at("cpu,cpuacct"),
            unified: unified.map(at),
            cpuset: Some(at("cpuset")),
        }
    }

    #[test]
    fn layouts() {
        let without_unified = HYBRID.lines().filter(|line| !line.contains("cgroup2")).collect::<Vec<_>>().join("\n");
        let v2 = CgroupPaths::V2 { dir: "/sys/fs/cgroup".into() };
        let table = [
            ("hybrid, controllers in v1", HYBRID, "", v1(Some("unified"))),
            ("hybrid, only a few in v2", HYBRID, "hugetlb pids", v1(Some("unified"))),
            ("v1 alone", &without_unified, "", v1(None)),
            ("unified", UNIFIED, "cpuset cpu io memory hugetlb pids rdma misc", v2),
        ];
        for (what, mountinfo, controllers, expected) in table {
            assert_eq!(root_group(mountinfo, |_| controllers.to_owned()).unwrap(), expected, "{what}");
        }
    }

    #[test]
    fn a_host_without_cpusets_is_accepted() {
        let found = root_group(&HYBRID.replace("rw,cpuset", "rw,hugetlb"), |_| String::new()).unwrap();
        assert_eq!(found.cpuset(), None);
    }

    #[test]
    fn missing_controllers_are_named() {
        let error = root_group(UNIFIED, |_| "cpuset cpu".to_owned()).unwrap_err().to_string();
        assert!(error.contains("the unified tree lacks") && error.contains("memory, pids, cpu, cpuacct"), "{error}");
        let error = root_group(&HYBRID.replace("rw,pids", "rw,hugetlb"), |_| String::new()).unwrap_err().to_string();
        assert!(error.contains("of version 1 pids is not mounted"), "{error}");
    }

    #[test]
    fn a_controller_is_not_found_by_a_part_of_its_name() {
        let error =
            root_group(&HYBRID.replace("rw,cpu,cpuacct", "rw,cpuacct"), |_| String::new()).unwrap_err().to_string();
        assert!(error.contains("of version 1 cpu is not mounted"), "{error}");
    }

    #[test]
    fn escapes() {
        let line = r"1 2 0:3 / /a\040b\134c\x rw - cgroup2 cgroup2 rw";
        assert_eq!(parse(line).unwrap().point, Path::new(r"/a b\c\x"));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "[ a-z0-9/\\\\,:-]{0,80}") {
            let _ = parse(&text);
            let _ = parse(&format!("1 2 0:3 / {text} - cgroup {text}"));
        }
    }
}
