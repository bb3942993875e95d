//! Groups of a process, from `/proc/<pid>/cgroup`, and its return to them, for a process that was moved by mistake: its
//! number was another's a moment ago. Used by [`crate::Group::take_unless`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Reads the groups of a process in all hierarchies, as the kernel writes them.
pub(crate) fn read(pid: i32) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
}

/// Puts the process with this number back into its former group, in the hierarchy of `dir`, if it is in `dir` now. The
/// groups read `before` the move are its own unless they equal `ours`, those of the former owner of the number: then
/// the process is just born, and belongs with its parent.
pub(crate) fn give_back(pid: i32, dir: &Path, ours: &str, before: &str) -> io::Result<()> {
    // Nothing to do for a process that is gone.
    let Ok(now) = read(pid) else { return Ok(()) };
    let Some((hierarchy, root)) = hierarchy_of(&now, dir) else { return Ok(()) };
    let former = path_in(before, hierarchy).filter(|path| path_in(ours, hierarchy) != Some(*path)).map(str::to_owned);
    let former = former.or_else(|| {
        let groups = read(parent(pid)?).ok()?;
        path_in(&groups, hierarchy).map(str::to_owned)
    });
    let put = |group: &str| fs::write(root.join(group.trim_start_matches('/')).join("cgroup.procs"), pid.to_string());
    // The root takes any process, also when the former group is gone.
    let put = former.map_or_else(|| put(""), |group| put(&group).or_else(|_| put("")));
    match read(pid) {
        Ok(_) => put,
        Err(_) => Ok(()),
    }
}

/// Hierarchy in which a process of these groups is in `dir`, and the root of that hierarchy. Pure.
fn hierarchy_of<'a>(groups: &'a str, dir: &Path) -> Option<(&'a str, PathBuf)> {
    groups.lines().find_map(|line| {
        let (hierarchy, path) = line.split_once(':').and_then(|(id, rest)| Some((id, rest.split_once(':')?.1)))?;
        let group = Path::new(path.trim_start_matches('/'));
        let depth = group.components().count();
        let root = dir.ancestors().nth(depth)?;
        (depth > 0 && dir.ends_with(group)).then(|| (hierarchy, root.to_owned()))
    })
}

/// Group in one hierarchy. Pure.
fn path_in<'a>(groups: &'a str, hierarchy: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| Some(line.strip_prefix(hierarchy)?.strip_prefix(':')?.split_once(':')?.1))
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_process_is_found_in_its_hierarchy() {
        let groups = "4:memory:/omni/a/model\n3:cpu,cpuacct:/user\n0::/\n";
        let (hierarchy, root) = hierarchy_of(groups, Path::new("/sys/fs/cgroup/memory/omni/a/model")).unwrap();
        assert_eq!((hierarchy, root.as_path()), ("4", Path::new("/sys/fs/cgroup/memory")));
        assert_eq!(hierarchy_of(groups, Path::new("/sys/fs/cgroup/memory/omni/b/model")), None);
        assert_eq!(path_in(groups, "3"), Some("/user"));
        assert_eq!(path_in(groups, "0"), Some("/"));
        assert_eq!(path_in(groups, "1"), None);
        assert_eq!(parent(std::process::id().cast_signed()), Some(std::os::unix::process::parent_id().cast_signed()));
    }
}
