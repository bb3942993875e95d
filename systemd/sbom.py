#!/usr/bin/env python3
"""Contents of the package, as a CycloneDX 1.6 document: programs, their crates, the bundled uv, the Python package.

Usage: systemd/sbom.py FILE      called by `make sbom` and `make deb`, after `setup/tools.sh build`

Who is linked into what says cargo, by the same selections as `make build`: normal dependencies only, no procedural
macros, for this machine's kind. Licences are the crates' own, hashes those of Cargo.lock (of a crate's archive, as the
registry has it). The same checkout on the same system gives the same bytes; a time stands in it only where
SOURCE_DATE_EPOCH says which.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
Json = dict[str, Any]
OWN: Json = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]

# Crates that `make build` compiles together, each with what it makes of them for the package.
BUILDS = [
    {
        "omni-scheduler": ["omni-scheduler"],
        "omni-worker": ["omni-launcher", "omni-worker"],
        "omni-weights-downloader": ["omni-weights"],
        "omni-engine": ["omni-engine"],
        "omnictl": ["omnictl"],
    },
    {"omni-cuda": ["libomni_cuda.so"]},
    {"omni-cuda-proxy": ["libomni_cuda_proxy.so"]},
]
# Linked without a shared library: its C library comes along.
STATIC = "omni-worker"
# The launcher has it inside, and writes it to the node's disk.
HAS_PACKAGE = "omni-launcher"


def said(*command: str) -> str:
    """Output of a command."""
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def linked(tree: str) -> set[tuple[str, str]]:
    """Names and versions in the output of `cargo tree --format {p}`."""
    return {(name, version) for name, version in re.findall(r"^(\S+) v(\S+)", tree, re.M)}


def crates(metadata: Json, lock: Json, inside: set[tuple[str, str]]) -> tuple[list[Json], dict[str, list[str]]]:
    """The components of what is linked, and who of them needs whom."""
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}
    refs = {}
    components = []
    for package in metadata["packages"]:
        name, version = package["name"], package["version"]
        if (name, version) not in inside:
            continue
        component: Json = {
            "type": "library",
            "bom-ref": f"pkg:cargo/{name}@{version.replace('+', '%2B')}" if package["source"] else f"omni:crate/{name}",
            "name": name,
            "version": version,
            "licenses": [{"expression": spdx(package["license"])}],
        }
        if package["source"]:
            component["purl"] = component["bom-ref"]
            component["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
        refs[package["id"]] = component["bom-ref"]
        components.append(component)
    needs = {}
    for node in metadata["resolve"]["nodes"]:
        if node["id"] in refs:
            normal = [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
            needs[refs[node["id"]]] = [refs[package] for package in normal if package in refs]
    return components, needs


def spdx(license: str) -> str:
    """The expression of a licence. A slash is how several were listed before there was a word for it."""
    return " ".join(license.replace("/", " OR ").split())


def programs() -> tuple[list[Json], dict[str, list[str]]]:
    """Our own programs in the package, and the parts linked into each beside crates."""
    components = []
    needs = {}
    for made in BUILDS:
        for crate, names in made.items():
            for name in names:
                kind = "library" if name.endswith(".so") else "application"
                ref = f"omni:program/{name}"
                components.append(ours(kind, ref, name))
                needs[ref] = [f"omni:crate/{crate}", "omni:rust-std"]
    needs[f"omni:program/{STATIC}"] += ["omni:glibc", "omni:libgcc"]
    needs[f"omni:program/{HAS_PACKAGE}"].append("omni:python/omni")
    return components, needs


def ours(kind: str, ref: str, name: str) -> Json:
    """A component of this project. None has a purl: other projects have these names in public registries."""
    version, expression = OWN["version"], OWN["license"]
    return {"type": kind, "bom-ref": ref, "name": name, "version": version, "licenses": [{"expression": expression}]}


def toolchain() -> list[Json]:
    """Parts that compiler and linker put into programs."""
    rust = tomllib.loads((ROOT / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
    glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")
    parts = [
        ("rust-std", rust, "MIT OR Apache-2.0"),
        ("glibc", glibc, "LGPL-2.1-or-later"),
        ("libgcc", said("gcc", "-dumpfullversion").strip(), "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ]
    return [
        {"type": "library", "bom-ref": f"omni:{name}", "name": name, "version": version}
        | {"purl": f"pkg:generic/{name}@{version}", "licenses": [{"expression": expression}]}
        for name, version, expression in parts
    ]


def bundled_uv(tools: Path) -> Json:
    """uv as it was fetched: the hash of the program, and within it the crates that its own document lists."""
    [about] = tools.glob("uv-*.dist-info")
    headers = HeaderParser().parsestr((about / "METADATA").read_text())
    name, version = headers["Name"], headers["Version"]
    purl = f"pkg:pypi/{name}@{version}"
    digest = hashlib.sha256((tools / "bin/uv").read_bytes()).hexdigest()
    expression = headers["License-Expression"] or "MIT OR Apache-2.0"
    return {
        "type": "application",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "licenses": [{"expression": expression}],
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "components": inner(json.loads((about / "sboms/uv.cyclonedx.json").read_text())),
    }


def inner(published: Json) -> list[Json]:
    """Other people's crates of a published document, for all systems that it is for. Its own ones have no addresses."""
    found = {}
    for component in published["components"]:
        purl = component["purl"].replace("+", "%2B")
        if "?" not in purl:
            found[purl] = {"bom-ref": f"uv/{purl}", "purl": purl} | {
                key: component[key] for key in ("type", "name", "version", "hashes")
            }
            found[purl]["licenses"] = [{"expression": spdx(choice["expression"])} for choice in component["licenses"]]
    return [found[purl] for purl in sorted(found)]


def document(components: list[Json], needs: dict[str, list[str]]) -> Json:
    """All of it, in one order whatever the order of its parts."""
    [uv] = [str(component["bom-ref"]) for component in components if component["name"] == "uv"]
    top = {component["bom-ref"]: needs.get(component["bom-ref"], []) for component in components}
    shipped = [ref for ref in top if ref.startswith("omni:program/")]
    top["omni"] = [*shipped, uv]
    bom: Json = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "build"}],
            "component": ours("application", "omni", "omni"),
        },
        "components": sorted(components, key=lambda component: str(component["bom-ref"])),
        "dependencies": [{"ref": ref, "dependsOn": sorted(set(below))} for ref, below in sorted(top.items())],
        # For uv the publisher lists the crates, without the edges between them.
        "compositions": [
            {"aggregate": "complete", "dependencies": sorted(shipped)},
            {"aggregate": "incomplete", "dependencies": [uv]},
        ],
    }
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is not None:
        bom["metadata"]["timestamp"] = datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # The same content has the same number.
    bom["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(bom, sort_keys=True))}"
    return bom


def sbom() -> Json:
    """The document of this checkout."""
    host = said("rustc", "--print", "host-tuple").strip()
    metadata = json.loads(said("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host))
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    tree = ["cargo", "tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]
    inside: set[tuple[str, str]] = set()
    for made in BUILDS:
        inside |= linked(said(*tree, *(word for crate in made for word in ("--package", crate))))
    libraries, needs = crates(metadata, lock, inside)
    own, needed = programs()
    python, uv = ours("library", "omni:python/omni", "omni"), bundled_uv(ROOT / ".omni/tools")
    return document([*libraries, *own, *toolchain(), python, uv], needs | needed)


def main() -> None:
    """Writes it to the file that is named."""
    [target] = sys.argv[1:]
    Path(target).write_text(json.dumps(sbom(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
