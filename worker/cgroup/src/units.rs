//! Names of systemd's units for instances, and their groups in the unified tree. Pure.
//!
//! For the parent `omni`: the scope `omni-<instance>.scope` in `omni-models.slice`, which is in `omni.slice` by its
//! name (systemd.slice(5)). Two nodes on one machine have two parents, and so no unit in common.

use crate::Error;
use std::path::Path;

const MODELS: &str = "-models.slice";
const SCOPE: &str = ".scope";
/// Longest prefix: a unit's name is at most 255 bytes, of which an instance has 64.
const MOST: usize = 120;

/// Units of one parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Units {
    prefix: String,
}

impl Units {
    /// Units for the parent of the node's configuration, whose parts become slices.
    pub(crate) fn of(parent: &str) -> Result<Self, Error> {
        let prefix = parent.replace('/', "-");
        let is_part = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
            !part.is_empty() && part.bytes().all(allowed) && !part.starts_with('.')
        };
        if prefix.len() <= MOST && prefix.split('-').all(is_part) {
            return Ok(Self { prefix });
        }
        let name = parent.chars().take(80).collect();
        Err(Error::BadName {
            name,
            expected: "a `cgroup-parent` that can be a slice of systemd (A-Z, a-z, 0-9, _ and .)",
        })
    }

    /// Slice with the scopes of all instances.
    pub(crate) fn slice(&self) -> String {
        format!("{}{MODELS}", self.prefix)
    }

    /// Scope of an instance, of a zygote or of a build.
    pub(crate) fn scope(&self, instance: &str) -> String {
        format!("{}-{instance}{SCOPE}", self.prefix)
    }

    /// Instance whose scope a directory below the slice is.
    pub(crate) fn instance<'a>(&self, dir: &'a str) -> Option<&'a str> {
        dir.strip_prefix(&self.prefix)?.strip_prefix('-')?.strip_suffix(SCOPE)
    }

    /// Slices of this parent alone, the innermost first.
    pub(crate) fn own_slices(&self) -> [String; 2] {
        [self.slice(), format!("{}.slice", self.prefix)]
    }

    /// Path of a slice below the root.
    pub(crate) fn path(slice: &str) -> String {
        let name = slice.trim_end_matches(".slice");
        let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
        ends.map(|end| format!("{}.slice", &name[..end])).collect::<Vec<_>>().join("/")
    }
}

/// Directory of another instance beside one in `above`: a scope's where that is a slice of models.
pub(crate) fn beside(above: &Path, instance: &str) -> String {
    let slice = above.file_name().unwrap_or_default().to_string_lossy();
    match slice.strip_suffix(MODELS) {
        Some(prefix) => Units { prefix: prefix.to_owned() }.scope(instance),
        None => instance.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_a_parent() {
        for (parent, slice, scope, path) in [
            ("omni", "omni-models.slice", "omni-0a.scope", "omni.slice/omni-models.slice"),
            (
                "gpu/omni",
                "gpu-omni-models.slice",
                "gpu-omni-0a.scope",
                "gpu.slice/gpu-omni.slice/gpu-omni-models.slice",
            ),
        ] {
            let units = Units::of(parent).unwrap();
            assert_eq!((units.slice().as_str(), units.scope("0a").as_str()), (slice, scope));
            assert_eq!(Units::path(slice), path);
            assert_eq!(units.instance(scope), Some("0a"));
            assert_eq!(beside(Path::new(path), "0b"), units.scope("0b"));
        }
        assert_eq!(beside(Path::new("/sys/fs/cgroup/omni"), "0b"), "0b");
    }

    #[test]
    fn other_units_in_the_slice_belong_to_no_instance() {
        let units = Units::of("omni").unwrap();
        assert_eq!(units.instance("omni-zygote-0a.scope"), Some("zygote-0a"));
        for other in ["omni.service", "omni-0a.service", "other-0a.scope", "cgroup.procs"] {
            assert_eq!(units.instance(other), None, "{other}");
        }
        assert_eq!(units.own_slices(), ["omni-models.slice", "omni.slice"]);
    }

    #[test]
    fn parents_that_are_no_slices() {
        for bad in ["a@b", "-a", "a-", "a--b", "a/-b", ".a", "", &"a".repeat(121)] {
            assert!(Units::of(bad).is_err(), "{bad}");
        }
    }
}
