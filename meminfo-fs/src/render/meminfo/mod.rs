//! Text of `/proc/meminfo` for one sample. Pure.
//!
//! Invariants, for any sample: no line exceeds `MemTotal`, `MemFree + Cached + SReclaimable` does not either (so the
//! "used" that `free`, psutil and htop compute never underflows), and `MemFree <= MemTotal`.

use std::io::Write as _;

use crate::sample::MemorySample;

/// Appends the text of `/proc/meminfo` to `out`, in the kernel's format: the name padded to 16 columns, the number right
/// aligned in 8 (more if it needs more), in units of 1024 bytes, rounded down. About 1 KiB.
///
/// Formulas: `MemTotal` = limit; `MemFree` = limit − usage; `MemAvailable` = min(limit, free + active file + inactive
/// file + reclaimable slab). Each is cut at 0 and at the limit. The rest: `docs/semantics-meminfo.md`.
pub fn render(sample: &MemorySample, out: &mut Vec<u8>) {
    let total = sample.limit;
    let used = sample.usage.min(total);
    let free = total - used;
    let reclaimable = sum(&[sample.active_file, sample.inactive_file, sample.slab_reclaimable]);
    let available = free.saturating_add(reclaimable).min(total);

    // The counters lag behind the usage, so a part can be reported larger than the whole.
    let part = |bytes: u64| bytes.min(used);
    let cached = part(sample.file);
    let slab_reclaimable = sample.slab_reclaimable.min(used - cached);
    let slab_unreclaimable = sample.slab_unreclaimable.min(used - cached - slab_reclaimable);
    let shmem = sample.shmem.min(cached);

    let lines = [
        ("MemTotal:", total),
        ("MemFree:", free),
        ("MemAvailable:", available),
        // A group does not tell block device pages from the rest of the page cache: they are in Cached.
        ("Buffers:", 0),
        ("Cached:", cached),
        // Models run without swap.
        ("SwapCached:", 0),
        ("Active:", part(sum(&[sample.active_anon, sample.active_file]))),
        ("Inactive:", part(sum(&[sample.inactive_anon, sample.inactive_file]))),
        ("Active(anon):", part(sample.active_anon)),
        ("Inactive(anon):", part(sample.inactive_anon)),
        ("Active(file):", part(sample.active_file)),
        ("Inactive(file):", part(sample.inactive_file)),
        ("Unevictable:", part(sample.unevictable)),
        ("SwapTotal:", 0),
        ("SwapFree:", 0),
        ("Dirty:", part(sample.dirty)),
        ("Writeback:", part(sample.writeback)),
        ("AnonPages:", part(sample.anon)),
        ("Mapped:", part(sample.mapped)),
        ("Shmem:", shmem),
        ("KReclaimable:", slab_reclaimable),
        ("Slab:", slab_reclaimable + slab_unreclaimable),
        ("SReclaimable:", slab_reclaimable),
        ("SUnreclaim:", slab_unreclaimable),
        ("KernelStack:", part(sample.kernel_stack)),
        ("PageTables:", part(sample.page_tables)),
        ("CommitLimit:", total),
        ("Committed_AS:", part(sum(&[sample.anon, shmem]))),
    ];
    for (name, bytes) in lines {
        // Writing into a Vec cannot fail.
        let _ = writeln!(out, "{name:<16}{:>8} kB", bytes / 1024);
    }
    // No huge page can be reserved from inside a group.
    out.extend_from_slice(
        b"HugePages_Total:       0\n\
          HugePages_Free:        0\n\
          HugePages_Rsvd:        0\n\
          HugePages_Surp:        0\n\
          Hugepagesize:       2048 kB\n\
          Hugetlb:               0 kB\n",
    );
}

fn sum(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |sum, part| sum.saturating_add(*part))
}

#[cfg(test)]
mod tests;
