"""Writes src/generated.rs: every entry of the CUDA driver API, as NVIDIA's headers declare them.

Usage: generate.py [--check] CUDA12_INCLUDE CUDA13_INCLUDE

Both folders are those of the PyPI packages nvidia-cuda-runtime-cu12 and nvidia-cuda-runtime. With
--check nothing is written: the headers are compared with the committed table, and each entry that differs is named.

Three things are read. Declarations say which functions there are and what they take; `#define cuX cuX_v2` says which
symbol a declaration means; the names PFN_cuX_v12000_ptsz of the typedefs say which versions of CUDA brought a function
anew. Functions of one name and flavour, oldest first, and their versions, oldest first, belong together: cuX, cuX_v2.

What an entry does to memory follows from its signature where it can, and from REVIEWED where it cannot. An entry that
might bring memory and is decided by neither stops this program: a reviewer has to decide.
"""

import argparse
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

HEADERS = ("cuda", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler")
TARGET = Path(__file__).parent / "src" / "generated.rs"

# Parameters through which memory, or a handle of memory, comes out.
MEMORY = re.compile(
    r"(?<!const )\b(CUdeviceptr|CUarray|CUmipmappedArray|CUmemGenericAllocationHandle|CUmemoryPool|CUexternalMemory"
    r"|CUgraphNodeParams|CUDA_MEM_ALLOC_NODE_PARAMS)(_v\d+)?\s*\*"
)
# Host memory: its address goes to the first parameter.
HOST_MEMORY = re.compile(r"void\s*\*\s*\*")
# Words of functions that make something, rather than show what is there.
MAKES = re.compile(r"Alloc(?!ation)|Create|Import|Open|Add(?!ress)")

# Roles that signatures do not tell, each with its reason.
REVIEWED = {
    # memory goes
    "cuArrayDestroy": ("Frees", "an array"),
    "cuCtxDestroy": ("Frees", "everything that was made in the context"),
    "cuCtxDetach": ("Frees", "the last one takes everything that was made in the context"),
    "cuDestroyExternalMemory": ("Frees", "what was imported"),
    "cuDevicePrimaryCtxRelease": ("Frees", "the last one takes everything that was made in the context"),
    "cuDevicePrimaryCtxReset": ("Frees", "everything that was made in the context"),
    "cuDeviceGraphMemTrim": ("Frees", "what no graph uses now"),
    "cuGraphDestroy": ("Frees", "the graph's memory nodes"),
    "cuGraphDestroyNode": ("Frees", "a memory node"),
    "cuGraphExecDestroy": ("Frees", "what its memory nodes had"),
    "cuIpcCloseMemHandle": ("Frees", "what was opened"),
    "cuMemFree": ("Frees", "device memory of most kinds"),
    "cuMemFreeAsync": ("Frees", "device memory, in the stream's order"),
    "cuMemFreeHost": ("Frees", "pinned host memory"),
    "cuMemHostUnregister": ("Frees", "host memory is pinned no longer"),
    "cuMemPoolDestroy": ("Frees", "a pool"),
    "cuMemPoolTrimTo": ("Frees", "what a pool keeps for later"),
    "cuMemRelease": ("Frees", "a handle; the memory, when nothing maps it"),
    "cuMemUnmap": ("Frees", "a mapping; the memory, when its handles are released"),
    "cuMipmappedArrayDestroy": ("Frees", "an array with its levels"),
    # how much there is
    "cuDeviceTotalMem": ("Reports", "the size of the card"),
    "cuMemGetInfo": ("Reports", "what is free of it"),
    "cuPointerGetAttribute": ("Reports", "what kind of memory it is: converted memory is managed"),
    "cuPointerGetAttributes": ("Reports", "the same"),
    # other entries
    "cuGetProcAddress": ("Resolves", "entries by name, version and flavour"),
    # taken over for another reason
    "cuCtxSetLimit": ("Watched", "the heap of device code takes memory"),
    "cuCtxSynchronize": ("Watched", "after a wait pools and streams have given memory back"),
    "cuEventSynchronize": ("Watched", "a wait"),
    "cuGraphInstantiate": ("Watched", "how much its memory nodes will take"),
    "cuGraphInstantiateWithFlags": ("Watched", "the same"),
    "cuGraphInstantiateWithParams": ("Watched", "the same"),
    "cuGraphLaunch": ("Watched", "memory nodes take their memory"),
    "cuGraphUpload": ("Watched", "the same"),
    "cuMemHostRegister": ("Watched", "pins host memory that is there already: counted as host memory"),
    "cuMemMap": ("Watched", "memory lives on while it is mapped, though its handle is released"),
    "cuMemPoolCreate": ("Watched", "whether a managed pool may stand for it"),
    "cuMemPoolGetAttribute": ("Watched", "what a pool has is what stands for it has, too"),
    "cuMemPoolSetAccess": ("Watched", "a managed pool knows no access: nothing may stand for it"),
    "cuMemPoolSetAttribute": ("Watched", "the same for what stands for it"),
    "cuMemRetainAllocationHandle": ("Watched", "one more handle of the same memory, which has to be released too"),
    "cuStreamSynchronize": ("Watched", "a wait"),
    # memory comes out, but no new one
    "cuArrayGetPlane": ("Other", "a part of an array"),
    "cuDeviceGetDefaultMemPool": ("Other", "shows a pool"),
    "cuDeviceGetMemPool": ("Other", "shows a pool"),
    "cuExternalMemoryGetMappedBuffer": ("Other", "a view of what was counted when it was imported"),
    "cuExternalMemoryGetMappedMipmappedArray": ("Other", "a view of what was counted when it was imported"),
    "cuGLMapBufferObject": ("Other", "memory of the graphics library"),
    "cuGLMapBufferObjectAsync": ("Other", "memory of the graphics library"),
    "cuGetExportTable": ("Other", "not documented: left alone"),
    "cuGraphExecNodeSetParams": ("Other", "takes no memory nodes"),
    "cuGraphMemAllocNodeGetParams": ("Other", "shows a node"),
    "cuGraphMemFreeNodeGetParams": ("Other", "shows a node"),
    "cuGraphNodeGetParams": ("Other", "shows a node"),
    "cuGraphNodeSetParams": ("Other", "takes no memory nodes"),
    "cuGraphicsResourceGetMappedMipmappedArray": ("Other", "memory of the graphics library"),
    "cuGraphicsResourceGetMappedPointer": ("Other", "memory of the graphics library"),
    "cuGraphicsSubResourceGetMappedArray": ("Other", "memory of the graphics library"),
    "cuLibraryGetGlobal": ("Other", "a variable of a loaded library"),
    "cuLibraryGetManaged": ("Other", "a variable of a loaded library"),
    "cuLibraryGetUnifiedFunction": ("Other", "the address of a function"),
    "cuMemAddressReserve": ("Other", "addresses without memory"),
    "cuMemDiscardAndPrefetchBatchAsync": ("Other", "takes addresses"),
    "cuMemDiscardBatchAsync": ("Other", "takes addresses"),
    "cuMemGetAddressRange": ("Other", "where an allocation begins"),
    "cuMemGetDefaultMemPool": ("Other", "shows a pool"),
    "cuMemGetMemPool": ("Other", "shows a pool"),
    "cuMemHostGetDevicePointer": ("Other", "another address of host memory"),
    "cuMemPoolImportFromShareableHandle": ("Other", "memory comes out of it by cuMemPoolImportPointer"),
    "cuMemPrefetchBatchAsync": ("Other", "takes addresses"),
    "cuMemRangeGetAttributes": ("Other", "shows a range"),
    "cuMemcpyBatchAsync": ("Other", "takes addresses"),
    "cuMipmappedArrayGetLevel": ("Other", "a part of an array"),
    "cuModuleGetGlobal": ("Other", "a variable of a loaded module"),
    "cuMulticastCreate": ("Other", "memory is bound to it, and was counted before"),
    "cuSurfRefGetArray": ("Other", "what was bound to it"),
    "cuTexRefGetAddress": ("Other", "what was bound to it"),
    "cuTexRefGetArray": ("Other", "what was bound to it"),
    "cuTexRefGetMipmappedArray": ("Other", "what was bound to it"),
}

PREAMBLE = """\
//! Written by `generate.py` from the headers of CUDA 12 and 13: do not edit.

use crate::Role::{Allocates, Frees, Other, Reports, Resolves, Watched};
use crate::{Entry, Headers, Role};

HEADERS
const fn plain(symbol: &'static str, base: &'static str, version: u32, headers: Headers, role: Role) -> Entry {
    Entry { symbol, base, version, per_thread: false, headers, role }
}

const fn per_thread(symbol: &'static str, base: &'static str, version: u32, headers: Headers, role: Role) -> Entry {
    Entry { symbol, base, version, per_thread: true, headers, role }
}

/// Every entry, sorted by symbol.
#[rustfmt::skip]
pub const ENTRIES: &[Entry] = &[
"""


# Constants of the table for the headers that declare an entry.
DECLARED_BY = {
    "BOTH": "const BOTH: Headers = Headers { cuda12: true, cuda13: true };\n",
    "CUDA12": "const CUDA12: Headers = Headers { cuda12: true, cuda13: false };\n",
    "CUDA13": "const CUDA13: Headers = Headers { cuda12: false, cuda13: true };\n",
}


class HeaderError(Exception):
    """A header says something that this program does not understand."""


@dataclass
class Entry:
    """Exported symbol."""

    base: str
    version: int
    per_thread: bool
    signatures: set[str]
    headers: list[str] = field(default_factory=list)

    def role(self) -> str:
        """Role of the entry; raises HeaderError when it is not decided."""
        if self.base in REVIEWED:
            return REVIEWED[self.base][0]
        signature = min(self.signatures)
        brings = any(MEMORY.search(text) or HOST_MEMORY.match(text) for text in self.signatures)
        makes = MAKES.search(self.base)
        if brings and makes:
            return "Allocates"
        if brings or (makes and makes[0] == "Alloc"):
            raise HeaderError(f"{self.base}({signature}): does it bring memory? Decide in REVIEWED")
        return "Other"


def uncommented(path: Path) -> str:
    """A header without comments and continued lines; empty when the package has no such header."""
    if not path.exists():
        return ""
    text = re.sub(r"/\*.*?\*/", " ", path.read_text(encoding="utf-8", errors="replace"), flags=re.DOTALL)
    return re.sub(r"//[^\n]*", " ", text).replace("\\\n", " ")


def declared(text: str) -> dict[str, set[str]]:
    """The signatures of each exported symbol.

    A header ends with a part for those who build the driver (__CUDA_API_VERSION_INTERNAL), where the renaming is undone
    and names are the symbols themselves.
    """
    undone = re.search(r"#\s*if defined\(__CUDA_API_VERSION_INTERNAL\)\s+(#undef|CUresult)", text)
    internal = undone.start() if undone else len(text)
    renamed: dict[str, tuple[str, str]] = {}
    rename = r"^[ \t]*#[ \t]*define[ \t]+(cu\w+)[ \t]+(?:__CUDA_API_(PTSZ|PTDS)\()?(cu\w+)\)?[ \t]*$"
    for match in re.finditer(rename, text[:internal], re.MULTILINE):
        renamed.setdefault(match[1], (match[3], (match[2] or "").lower()))
    symbols: dict[str, set[str]] = defaultdict(set)
    for match in re.finditer(r"\bCUresult\s+CUDAAPI\s+(cu\w+)\s*\(([^;{]*?)\)\s*;", text):
        name, signature = match[1], " ".join(match[2].split())
        symbol, flavour = (name, "") if match.start() >= internal else renamed.get(name, (name, ""))
        symbols[symbol].add(signature)
        if flavour:
            symbols[f"{symbol}_{flavour}"].add(signature)
    return symbols


def flavours(text: str) -> dict[tuple[str, str], dict[int, set[str]]]:
    """By base and suffix of flavour: the versions that the typedefs name, with their signatures."""
    versions: dict[tuple[str, str], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    typedef = r"\(CUDAAPI\s*\*\s*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)\s*\(([^;]*?)\)\s*;"
    for match in re.finditer(typedef, text):
        versions[match[1], match[3] or ""][int(match[2])].add(" ".join(match[4].split()))
    return versions


def joined(include: Path, newer: dict[tuple[str, str], dict[int, set[str]]]) -> dict[str, Entry]:
    """The entries of one package. What its own typedefs leave out is taken from those of the newer one."""
    symbols: dict[str, set[str]] = {}
    for header in HEADERS:
        symbols |= declared(uncommented(include / f"{header}.h"))
    if not symbols:
        raise HeaderError(f"{include}: declares no entry of the driver")
    named = typedefs(include)
    forms: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for symbol in symbols:
        match = re.fullmatch(r"(cu\w+?)(?:_v(\d+))?(_ptsz|_ptds)?", symbol)
        assert match, symbol
        forms[match[1], match[3] or ""].append((int(match[2] or 1), symbol))
    entries = {}
    for (base, flavour), numbered in forms.items():
        versions = sorted(named.get((base, flavour)) or newer.get((base, flavour), {}))
        if len(versions) != len(numbered):
            found = ", ".join(symbol for _, symbol in sorted(numbered))
            raise HeaderError(f"{include}: {found} do not pair with the versions {versions} of the typedefs")
        for version, (_, symbol) in zip(versions, sorted(numbered), strict=True):
            entries[symbol] = Entry(base, version, bool(flavour), symbols[symbol])
    for (base, flavour), of_version in named.items():
        if (base, flavour) in forms:
            continue
        if flavour or len(of_version) != 1:
            raise HeaderError(f"{include}: {base}{flavour} has typedefs, but no header declares it")
        for version, signatures in of_version.items():
            entries[base] = Entry(base, version, False, signatures)
    return entries


def typedefs(include: Path) -> dict[tuple[str, str], dict[int, set[str]]]:
    """The typedefs of all headers of a package."""
    return flavours("\n".join(uncommented(include / f"{header}Typedefs.h") for header in HEADERS))


def merged(cuda12: Path, cuda13: Path) -> dict[str, Entry]:
    """The entries of both packages."""
    newer = typedefs(cuda13)
    entries: dict[str, Entry] = {}
    for name, include in (("CUDA12", cuda12), ("CUDA13", cuda13)):
        for symbol, entry in joined(include, newer).items():
            known = entries.setdefault(symbol, entry)
            if (known.base, known.version, known.per_thread) != (entry.base, entry.version, entry.per_thread):
                raise HeaderError(f"{symbol}: the two headers disagree about its version")
            known.signatures |= entry.signatures
            known.headers.append(name)
    return entries


def lines(entries: dict[str, Entry]) -> dict[str, str]:
    """The line of each symbol in the table."""
    undecided, table = [], {}
    for symbol, entry in sorted(entries.items()):
        try:
            role = entry.role()
        except HeaderError as error:
            undecided.append(str(error))
            continue
        headers = "BOTH" if len(entry.headers) == 2 else entry.headers[0]
        flavour = "per_thread" if entry.per_thread else "plain"
        table[symbol] = f'    {flavour}("{symbol}", "{entry.base}", {entry.version}, {headers}, {role}),\n'
    stale = sorted(REVIEWED.keys() - {entry.base for entry in entries.values()})
    undecided += [f"{name}: in REVIEWED, but in no header" for name in stale]
    if undecided:
        raise HeaderError("\n".join(undecided))
    return table


def source(table: dict[str, str]) -> str:
    """The text of the table."""
    body = "".join(table.values())
    named = "".join(constant for name, constant in DECLARED_BY.items() if f" {name}, " in body)
    return PREAMBLE.replace("HEADERS\n", named + "\n") + body + "];\n"


def differences(table: dict[str, str]) -> list[str]:
    """Differences of the committed table from the headers, a line for each symbol."""
    committed = TARGET.read_text(encoding="utf-8")
    if committed == source(table):
        return []
    old = {match[1]: match[0] for match in re.finditer(r'^    \w+\("(\w+)".*\n', committed, re.MULTILINE)}
    named = [f"{symbol}: not in the table" for symbol in table.keys() - old.keys()]
    named += [f"{symbol}: in the table, but in no header" for symbol in old.keys() - table.keys()]
    both = table.keys() & old.keys()
    named += [f"{symbol}: otherwise in the table" for symbol in both if table[symbol] != old[symbol]]
    return sorted(named) or [f"{TARGET.name}: not as it is written"]


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description="Writes the table of the CUDA driver API's entries.")
    parser.add_argument("--check", action="store_true", help="compare with the committed table, write nothing")
    parser.add_argument("cuda12", type=Path, help="include folder of nvidia-cuda-runtime-cu12")
    parser.add_argument("cuda13", type=Path, help="include folder of nvidia-cuda-runtime")
    arguments = parser.parse_args()
    try:
        table = lines(merged(arguments.cuda12, arguments.cuda13))
    except HeaderError as error:
        print(error, file=sys.stderr)
        return 1
    if not arguments.check:
        TARGET.write_text(source(table), encoding="utf-8")
        return 0
    found = differences(table)
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
