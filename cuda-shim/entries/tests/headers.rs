//! The committed table against the headers that `make setup` fetched: every declared entry is in it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Folder of headers inside one of the two packages.
fn include(package: &str) -> PathBuf {
    let folder = Path::new(HERE).join("../../.omni/cuda-runtime/nvidia").join(package).join("include");
    assert!(folder.join("cuda.h").exists(), "{}: no headers there; `make setup` fetches them", folder.display());
    folder
}

fn check(cuda12: &Path, cuda13: &Path) -> Output {
    let program = Path::new(HERE).join("generate.py");
    Command::new("python3").arg(program).arg("--check").args([cuda12, cuda13]).output().expect("python3 runs")
}

/// Headers of CUDA 13 with one line more in two of them, as a later release could have.
fn release(declaration: &str, typedef: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    for entry in fs::read_dir(include("cu13")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("cuda") && entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
    }
    for (header, anchor, line) in [
        ("cuda.h", "CUresult CUDAAPI cuInit(", declaration),
        ("cudaTypedefs.h", "typedef CUresult (CUDAAPI *PFN_cuInit", typedef),
    ] {
        let path = folder.path().join(header);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(anchor), "{header} has no {anchor}");
        fs::write(path, text.replacen(anchor, &format!("{line}\n{anchor}"), 1)).unwrap();
    }
    folder
}

fn complaint(declaration: &str, typedef: &str) -> String {
    let newer = release(declaration, typedef);
    let output = check(&include("cuda_runtime"), newer.path());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_table_agrees_with_the_headers() {
    let output = check(&include("cuda_runtime"), &include("cu13"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_allocating_entry_that_the_table_lacks_is_named() {
    let said = complaint(
        "CUresult CUDAAPI cuMemAllocShiny(CUdeviceptr *dptr, size_t bytesize);",
        "typedef CUresult (CUDAAPI *PFN_cuMemAllocShiny_v14000)(CUdeviceptr_v2 *dptr, size_t bytesize);",
    );
    assert_eq!(said, "cuMemAllocShiny: not in the table\n");
}

#[test]
fn a_newer_form_of_a_known_entry_is_named() {
    let said = complaint(
        "CUresult CUDAAPI cuMemCreate_v2(CUmemGenericAllocationHandle *handle, size_t size);",
        "typedef CUresult (CUDAAPI *PFN_cuMemCreate_v14000)(CUmemGenericAllocationHandle_v1 *handle, size_t size);",
    );
    assert_eq!(said, "cuMemCreate_v2: not in the table\n");
}

#[test]
fn an_entry_that_might_allocate_needs_a_decision() {
    for (declaration, typedef) in [
        (
            "CUresult CUDAAPI cuMemGetShiny(CUdeviceptr *dptr);",
            "typedef CUresult (CUDAAPI *PFN_cuMemGetShiny_v14000)(CUdeviceptr_v2 *dptr);",
        ),
        (
            "CUresult CUDAAPI cuShinyAlloc(CUshiny *shiny);",
            "typedef CUresult (CUDAAPI *PFN_cuShinyAlloc_v14000)(CUshiny *shiny);",
        ),
    ] {
        let said = complaint(declaration, typedef);
        assert!(said.contains("Shiny") && said.contains("Decide in REVIEWED"), "{said}");
    }
}

#[test]
fn a_version_without_its_entry_is_an_error() {
    let said = complaint("", "typedef CUresult (CUDAAPI *PFN_cuMemFree_v14000)(CUdeviceptr_v2 dptr);");
    assert!(said.contains("cuMemFree, cuMemFree_v2 do not pair"), "{said}");
}
