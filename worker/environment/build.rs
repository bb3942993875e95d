//! Cargo sees changes of the Python files that `omni-launcher` carries, but not of their names: a new file must make it
//! look again.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    watch(Path::new("../python/omni"));
}

/// Names every directory with sources, not those that Python itself writes to.
fn watch(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.is_dir() && !path.ends_with("__pycache__") {
            watch(&path);
        } else if path.extension().is_some_and(|end| end == "py") {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}
