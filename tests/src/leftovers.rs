//! Leftovers of a node on the machine, by the kernel's lists and not by the node: processes, mounts, control groups,
//! loop devices. Also removes them, for tests that failed.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};

/// How to recognise what belongs to one node.
#[derive(Debug, Clone)]
pub(crate) struct Marks {
    /// Folders whose paths appear in command lines, mounts and backing files.
    pub(crate) folders: Vec<PathBuf>,
    /// The node's parent group, relative to the root of each hierarchy.
    pub(crate) cgroup: String,
}

impl Marks {
    /// Everything that is still there, one line each.
    pub(crate) fn found(&self) -> Vec<String> {
        let processes = self.processes().into_iter().map(|pid| {
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
            format!("process {pid}: {command}")
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts =
            mounts.lines().filter(|line| self.names(line)).map(|line| format!("mount: {line}")).collect::<Vec<_>>();
        let cgroups = self.cgroups().into_iter().map(|dir| format!("control group: {}", dir.display()));
        let loops = loop_files().into_iter().filter(|line| self.names(line)).map(|line| format!("loop device: {line}"));
        processes.chain(mounts).chain(cgroups).chain(loops).collect()
    }

    /// Ends every process and removes every control group.
    pub(crate) fn sweep(&self) {
        for pid in self.processes() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        for dir in self.cgroups() {
            let _ = fs::remove_dir(dir);
        }
    }

    /// Processes in the node's groups, and those that name its folders on their command line.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let group = format!(":/{}/", self.cgroup);
        let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ours = |pid: &i32| {
            // A zombie has no command line and counts as gone once it has left its groups.
            let read = |file: &str| {
                fs::read(format!("/proc/{pid}/{file}")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            };
            let named = read("cmdline").is_ok_and(|line| self.names(&line));
            named || read("cgroup").is_ok_and(|groups| groups.contains(&group) && !is_zombie(*pid))
        };
        numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(ours).collect()
    }

    pub(crate) fn names(&self, text: &str) -> bool {
        self.folders.iter().any(|folder| text.contains(&*folder.to_string_lossy()))
    }

    /// Directories below the parent in every hierarchy, the parent itself included, deepest first.
    fn cgroups(&self) -> Vec<PathBuf> {
        let root = Path::new("/sys/fs/cgroup");
        let hierarchies = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
        let parents = hierarchies.chain([root.to_owned()]).map(|hierarchy| hierarchy.join(&self.cgroup));
        let mut all = Vec::new();
        parents.filter(|dir| dir.is_dir()).for_each(|dir| descend(&dir, &mut all));
        all
    }
}

fn descend(dir: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            descend(&entry.path(), all);
        }
    }
    all.push(dir.to_owned());
}

fn is_zombie(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

fn loop_files() -> Vec<String> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PATIENCE, wait_for};
    use nix::mount::{MsFlags, mount, umount};
    use std::process::{Command, Stdio};

    #[test]
    fn each_kind_is_found_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let marks =
            Marks { folders: vec![folder.path().to_owned()], cgroup: format!("omni-left-{}", std::process::id()) };
        assert_eq!(marks.found(), Vec::<String>::new());
        let has = |kind: &str| marks.found().iter().any(|line| line.starts_with(kind));

        mount(Some("none"), folder.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        assert!(has("mount: "));
        umount(folder.path()).unwrap();

        let hierarchy = ["memory", ""]
            .map(|part| Path::new("/sys/fs/cgroup").join(part))
            .into_iter()
            .find(|dir| dir.join("cgroup.procs").exists());
        let group = hierarchy.expect("a hierarchy").join(&marks.cgroup).join("0a/model");
        fs::create_dir_all(&group).unwrap();
        assert!(has("control group: "));

        let sleeping = |argument: &Path| {
            Command::new("sh").args(["-c", "echo; read x"]).arg(argument).stdin(Stdio::piped()).spawn().unwrap()
        };
        let mut inside = sleeping(Path::new("-"));
        fs::write(group.join("cgroup.procs"), inside.id().to_string()).unwrap();
        let mut named = sleeping(folder.path());
        // The command line is there once it has begun to execute.
        wait_for("two processes", PATIENCE, || (marks.processes().len() == 2).then_some(()));

        marks.sweep();
        inside.wait().unwrap();
        named.wait().unwrap();
        wait_for("an empty group", PATIENCE, || {
            marks.sweep();
            marks.found().is_empty().then_some(())
        });
    }
}
