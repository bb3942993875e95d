//! Both layouts against plain files in the kernel's format; the real v1 or v2 controller: `tests/`.

use std::error::Error as _;
use std::fs;

use tempfile::TempDir;

use super::*;

const V1_STAT: &str = "cache 4096\nrss 4096\nshmem 0\nhierarchical_memory_limit 7516192768\n\
    total_cache 773574656\ntotal_rss 10088448\ntotal_rss_huge 0\ntotal_shmem 9084928\ntotal_mapped_file 11100160\n\
    total_dirty 180224\ntotal_writeback 4096\ntotal_pgpgin 7536186\ntotal_inactive_anon 4210688\n\
    total_active_anon 1560576\ntotal_inactive_file 472092672\ntotal_active_file 292397056\n\
    total_unevictable 13262848\n";

const V2_STAT: &str = "anon 104857600\nfile 209715200\nkernel 5242880\nkernel_stack 163840\npagetables 1048576\n\
    sec_pagetables 0\npercpu 1440\nsock 0\nvmalloc 8192\nshmem 8388608\nzswap 0\nzswapped 0\nfile_mapped 4194304\n\
    file_dirty 12288\nfile_writeback 8192\nswapcached 0\nanon_thp 0\nfile_thp 0\nshmem_thp 0\ninactive_anon 41943040\n\
    active_anon 71303168\ninactive_file 150994944\nactive_file 50331648\nunevictable 4096\n\
    slab_reclaimable 2097152\nslab_unreclaimable 1048576\nslab 3145728\nworkingset_refault_anon 0\npgfault 81234\n";

fn group(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn v1(limit: &str, stat: &str) -> TempDir {
    group(&[("memory.limit_in_bytes", limit), ("memory.usage_in_bytes", "838860800\n"), ("memory.stat", stat)])
}

fn v2(limit: &str, stat: &str) -> TempDir {
    group(&[("memory.max", limit), ("memory.current", "322961408\n"), ("memory.stat", stat)])
}

#[test]
fn v1_reads_the_totals_with_the_children() {
    let dir = v1("7516192768\n", V1_STAT);
    let sample = CgroupV1::open(dir.path(), None).unwrap().sample().unwrap();
    let expected = MemorySample {
        limit: 7_516_192_768,
        usage: 838_860_800,
        anon: 10_088_448,
        file: 773_574_656,
        shmem: 9_084_928,
        mapped: 11_100_160,
        dirty: 180_224,
        writeback: 4096,
        active_anon: 1_560_576,
        inactive_anon: 4_210_688,
        active_file: 292_397_056,
        inactive_file: 472_092_672,
        unevictable: 13_262_848,
        ..MemorySample::default()
    };
    assert_eq!(sample, expected);
}

#[test]
fn v2_reads_every_counter() {
    let dir = v2("1073741824\n", V2_STAT);
    let sample = CgroupV2::open(dir.path(), None).unwrap().sample().unwrap();
    let expected = MemorySample {
        limit: 1_073_741_824,
        usage: 322_961_408,
        anon: 104_857_600,
        file: 209_715_200,
        shmem: 8_388_608,
        mapped: 4_194_304,
        dirty: 12_288,
        writeback: 8192,
        active_anon: 71_303_168,
        inactive_anon: 41_943_040,
        active_file: 50_331_648,
        inactive_file: 150_994_944,
        unevictable: 4096,
        slab_reclaimable: 2_097_152,
        slab_unreclaimable: 1_048_576,
        kernel_stack: 163_840,
        page_tables: 1_048_576,
    };
    assert_eq!(sample, expected);
}

#[test]
fn a_later_sample_sees_later_counters() {
    let dir = v2("1073741824\n", V2_STAT);
    let source = CgroupV2::open(dir.path(), None).unwrap();
    source.sample().unwrap();
    fs::write(dir.path().join("memory.current"), "1048576\n").unwrap();
    fs::write(dir.path().join("memory.max"), "2097152\n").unwrap();
    let sample = source.sample().unwrap();
    assert_eq!((sample.usage, sample.limit), (1_048_576, 2_097_152));
}

#[test]
fn an_unlimited_group_is_an_error_unless_a_limit_is_given() {
    for limit in ["9223372036854771712\n", "9223372036854710272\n"] {
        let dir = v1(limit, V1_STAT);
        let error = CgroupV1::open(dir.path(), None).unwrap().sample().unwrap_err();
        assert!(matches!(error, SampleError::Unlimited { file: "memory.limit_in_bytes" }), "{error:?}");
        assert_eq!(CgroupV1::open(dir.path(), Some(42)).unwrap().sample().unwrap().limit, 42);
    }
    let dir = v2("max\n", V2_STAT);
    let error = CgroupV2::open(dir.path(), None).unwrap().sample().unwrap_err();
    assert!(matches!(error, SampleError::Unlimited { file: "memory.max" }), "{error:?}");
    assert_eq!(CgroupV2::open(dir.path(), Some(42)).unwrap().sample().unwrap().limit, 42);
}

#[test]
fn a_malformed_counter_is_an_error() {
    for (limit, stat) in [
        ("", V2_STAT),
        ("-1\n", V2_STAT),
        ("18446744073709551616\n", V2_STAT),
        ("1073741824\n", ""),
        ("1073741824\n", "anon\n"),
        ("1073741824\n", &V2_STAT.replace("slab_reclaimable", "slab_gone")),
        ("1073741824\n", &V2_STAT.replace("209715200", "many")),
        ("1073741824\n", &V2_STAT.repeat(20)),
    ] {
        let dir = v2(limit, stat);
        let error = CgroupV2::open(dir.path(), None).unwrap().sample().unwrap_err();
        assert!(matches!(error, SampleError::Malformed { .. }), "{limit:?}: {error:?}");
    }
    let dir = v2("1073741824\n", &V2_STAT.replace("slab_reclaimable", "slab_gone"));
    let error = CgroupV2::open(dir.path(), None).unwrap().sample().unwrap_err();
    assert_eq!(error.to_string(), "memory.stat of the control group has no number for `slab_reclaimable`");
}

#[test]
fn a_directory_that_is_no_group_is_named() {
    let dir = group(&[]);
    let error = CgroupV2::open(dir.path(), None).err().unwrap();
    assert!(error.to_string().contains(&dir.path().join("memory.max").display().to_string()), "{error}");
    assert!(error.source().unwrap().to_string().contains("No such file"));
}
