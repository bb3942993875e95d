//! Environment variables of an instance. Called by [`super::start`]; pure but for the list of the host's processors.
//!
//! Three kinds: the node's own, which a manifest cannot name (`omni_config::manifest` refuses them); defaults, which give way
//! to the manifest's; and the manifest's.

use super::gpu;
use super::sandbox_paths::CACHE;
use omni_meminfo_fs::Shown;
use omni_node_protocol::launcher::StartSpec;
use omni_sandbox::{CACHE_HOME, HOME, USER};
use std::path::Path;

/// Variables that stand for a number of processors: at OpenMP and all that follow it (torch, OpenBLAS, MKL, `nproc`), and at
/// Python from 3.13 on. [Why](../../../docs/decisions/processors-shown.md).
const THREADS: [&str; 2] = ["OMP_NUM_THREADS", "PYTHON_CPU_COUNT"];
/// Places of caches that libraries choose by a variable of their own, below that of `XDG_CACHE_HOME`.
const CACHES: [(&str, &str); 6] = [
    ("HF_HOME", "huggingface"),
    ("MPLCONFIGDIR", "matplotlib"),
    ("NUMBA_CACHE_DIR", "numba"),
    ("TORCHINDUCTOR_CACHE_DIR", "torchinductor"),
    ("TORCH_HOME", "torch"),
    ("TRITON_CACHE_DIR", "triton"),
];

/// All variables of an instance whose interpreter is `python`.
pub(super) fn of(spec: &StartSpec, python: &Path) -> Vec<(String, String)> {
    let bin = python.parent().unwrap_or(Path::new("/usr/bin")).display();
    let mut env = spec.env.clone();
    let mut default = |name: &str, value: String| {
        env.entry(name.to_owned()).or_insert(value);
    };
    // A program that asks the kernel for its processors, and not a file, counts all the host's. A list that cannot be
    // read is the worker's to report.
    if let Ok(shown) = Shown::by_limit(spec.cpu_millis) {
        for name in THREADS {
            default(name, shown.numbers().len().to_string());
        }
    }
    let lasting = if spec.cache_bytes > 0 { CACHE_HOME.to_owned() } else { format!("{HOME}/.cache") };
    default("XDG_CACHE_HOME", lasting);
    let caches = env.get("XDG_CACHE_HOME").cloned().unwrap_or_default();
    for (name, folder) in CACHES {
        env.entry(name.to_owned()).or_insert_with(|| format!("{caches}/{folder}"));
    }
    for (name, value) in [("LANG", "C.UTF-8"), ("PYTHONFAULTHANDLER", "1")] {
        env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    let ours = [
        ("PATH", format!("{bin}:/usr/local/bin:/usr/bin:/bin")),
        ("HOME", HOME.to_owned()),
        ("USER", USER.to_owned()),
        ("LOGNAME", USER.to_owned()),
        ("SHELL", "/bin/sh".to_owned()),
        ("TMPDIR", "/tmp".to_owned()),
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
    ];
    env.extend(ours.map(|(name, value)| (name.to_owned(), value)));
    if let Some(gpu) = &spec.gpu {
        let cache = if spec.cache_bytes > 0 { CACHE } else { "/tmp" };
        env.extend(gpu::variables(gpu, cache).into_iter().map(|(name, value)| (name.to_owned(), value)));
    }
    env.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn env(cache_bytes: u64, own: &[(&str, &str)]) -> BTreeMap<String, String> {
        let own: BTreeMap<&str, &str> = own.iter().copied().collect();
        let spec = serde_json::json!({
            "instance": "0123456789ab", "model": "a", "snapshot": "ab".repeat(32), "engine": {"kind": "python", "environment": "cd".repeat(32), "module": "model", "function": "handle_request"},
            "memory_bytes": 1, "cpu_millis": 1000, "pids": 1,
            "tmp_bytes": 1, "cache_bytes": cache_bytes, "concurrency": 1, "host_network": false,
            "env": own, "log_lines_per_second": 1, "note": "",
        });
        of(&serde_json::from_value(spec).unwrap(), Path::new("/env/bin/python")).into_iter().collect()
    }

    #[test]
    fn caches_of_libraries_last() {
        let found = env(1, &[]);
        assert_eq!(found["XDG_CACHE_HOME"], "/cache/.cache");
        assert_eq!(found["HF_HOME"], "/cache/.cache/huggingface");
        for (name, _) in CACHES {
            assert!(found[name].starts_with("/cache/.cache/"), "{name}");
        }
        assert_eq!(env(0, &[])["TORCH_HOME"], "/tmp/home/.cache/torch");
    }

    #[test]
    fn the_local_run_has_the_same_caches() {
        let local = include_str!("../../python/omni/_run/program.py");
        let caches = local.split_once("_CACHES = {\n").unwrap().1.split_once("}\n").unwrap().0;
        let expected = CACHES.map(|(name, folder)| format!("    \"{name}\": \"{folder}\",\n"));
        assert_eq!(caches, expected.concat());
    }

    #[test]
    fn the_manifest_decides_over_defaults_and_not_over_the_nodes_own() {
        let own =
            [("XDG_CACHE_HOME", "/cache/x"), ("NUMBA_CACHE_DIR", "/tmp/n"), ("LANG", "de_DE.UTF-8"), ("HOME", "/")];
        let found = env(1, &own);
        assert_eq!(found["NUMBA_CACHE_DIR"], "/tmp/n");
        assert_eq!(found["HF_HOME"], "/cache/x/huggingface");
        assert_eq!(found["LANG"], "de_DE.UTF-8");
        let expected = [("HOME", "/tmp/home"), ("USER", "model"), ("LOGNAME", "model"), ("TMPDIR", "/tmp")];
        for (name, value) in expected {
            assert_eq!(found[name], value);
        }
        assert_eq!(found["PATH"], "/env/bin:/usr/local/bin:/usr/bin:/bin");
    }
}
