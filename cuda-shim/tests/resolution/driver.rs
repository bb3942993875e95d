//! Recording driver: every entry of the table up to some version of CUDA, all of them doing nothing, and a
//! `cuGetProcAddress` that answers by the table. Written as C, so that it is a `libcuda.so.1` as a loader knows it.
//!
//! Beyond the simulated driver it has any age, and records its callers.

use omni_cuda_entries::ENTRIES;
use std::fmt::Write;

/// C source of a driver that reports `version`. Requests go into the file `$RECORDED`: name and the library that asks.
pub(crate) fn source(version: u32) -> String {
    let entries = || ENTRIES.iter().filter(|entry| entry.version <= version);
    let written = ["cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuGetExportTable"];
    let resolves = ["cuGetProcAddress", "cuGetProcAddress_v2"];
    let mut text = HEAD.replace("VERSION", &version.to_string());
    for entry in entries().filter(|entry| !written.contains(&entry.symbol) && !resolves.contains(&entry.symbol)) {
        writeln!(text, "int {}(void) {{ return 0; }}", entry.symbol).expect("a string takes everything");
    }
    text.push_str("static const struct entry table[] = {\n");
    for entry in entries() {
        let (symbol, base, version) = (entry.symbol, entry.base, entry.version);
        writeln!(text, "    {{\"{base}\", {version}, {}, {symbol}}},", u8::from(entry.per_thread))
            .expect("a string takes everything");
    }
    text.push_str("};\n");
    text.push_str(TAIL);
    text
}

const HEAD: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry { const char *base; int version; int per_thread; void *function; };

int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDriverGetVersion(int *version) { if (!version) return 1; *version = VERSION; return 0; }
int cuDeviceGetCount(int *count) { if (!count) return 1; *count = 1; return 0; }
int cuGetExportTable(const void **table, const void *id) { (void)table; (void)id; return 500; }
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
"#;

const TAIL: &str = r#"
static void record(const char *name, void *caller) {
    Dl_info info;
    FILE *file = getenv("RECORDED") ? fopen(getenv("RECORDED"), "a") : NULL;
    if (!file) return;
    fprintf(file, "%s %s\n", *name ? name : "-", dladdr(caller, &info) ? strrchr(info.dli_fname, '/') + 1 : "-");
    fclose(file);
}

static int find(const char *name, void **function, int version, uint64_t flags, int *status) {
    if (!name || !function) return 1;
    const struct entry *best = NULL;
    int known = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct entry *entry = &table[i];
        if (strcmp(entry->base, name)) continue;
        known = 1;
        if (entry->version > version || (entry->per_thread && !(flags & 2))) continue;
        int flavour = best ? entry->per_thread - best->per_thread : 1;
        if (flavour > 0 || (flavour == 0 && entry->version > best->version)) best = entry;
    }
    *function = best ? best->function : NULL;
    if (status) *status = best ? 0 : known ? 2 : 1;
    return best ? 0 : 500;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    if (name) record(name, __builtin_return_address(0));
    return find(name, function, version, flags, NULL);
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    if (name) record(name, __builtin_return_address(0));
    return find(name, function, version, flags, status);
}
"#;
