"""The list of what is shipped: right about what is linked, in CycloneDX's form, the same each time.

Run by `make test`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator

import pytest
import sbom
from sbom import ROOT, Json

# The parts of the form, from the schema of CycloneDX 1.6, that this document uses.
TYPES = {"application", "library"}
AGGREGATES = {"complete", "incomplete"}
SERIAL = r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
PURL = r"pkg:(cargo|pypi|generic)/[A-Za-z0-9._-]+@[A-Za-z0-9.%_-]+"
LICENSE = r"\(?[A-Za-z0-9.+-]+\)?( (OR|AND|WITH) \(?[A-Za-z0-9.+-]+\)?)*"


@pytest.fixture(scope="module")
def bom() -> Json:
    return sbom.sbom()


def every(components: list[Json]) -> Iterator[Json]:
    """All components, those within others too."""
    for component in components:
        yield component
        yield from every(component.get("components", []))


def names(bom: Json) -> set[str]:
    return {component["name"] for component in bom["components"]}


def test_the_form(bom: Json) -> None:
    assert (bom["bomFormat"], bom["specVersion"], bom["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(SERIAL, bom["serialNumber"])
    known = {"type", "bom-ref", "name", "version", "licenses", "purl", "hashes", "components"}
    for component in every([bom["metadata"]["component"], *bom["components"]]):
        assert set(component) <= known and component["type"] in TYPES, component
        assert component["name"] and component["version"], component
        for choice in component.get("licenses", []):
            assert set(choice) == {"expression"} and re.fullmatch(LICENSE, choice["expression"]), component
        assert re.fullmatch(PURL, component.get("purl", "pkg:cargo/x@1")), component
        for digest in component.get("hashes", []):
            assert digest["alg"] == "SHA-256" and re.fullmatch("[0-9a-f]{64}", digest["content"]), component
    assert {composition["aggregate"] for composition in bom["compositions"]} == AGGREGATES


def test_every_named_component_occurs_once(bom: Json) -> None:
    refs = [component["bom-ref"] for component in every([bom["metadata"]["component"], *bom["components"]])]
    assert len(refs) == len(set(refs))
    graph = {entry["ref"]: entry["dependsOn"] for entry in bom["dependencies"]}
    named = [*graph, *(below for all_below in graph.values() for below in all_below)]
    named += [ref for composition in bom["compositions"] for ref in composition["dependencies"]]
    assert set(named) <= set(refs)
    # Everything is there for a reason: something that is shipped needs it.
    reached, waiting = set(), ["omni"]
    while waiting:
        ref = waiting.pop()
        if ref not in reached:
            reached.add(ref)
            waiting += graph[ref]
    assert set(graph) == reached


def test_the_bom_has_linked_crates_only(bom: Json) -> None:
    shipped = {"omni-scheduler", "omni-launcher", "omni-worker", "omni-weights", "omni-engine", "omnictl"}
    shipped |= {"libomni_cuda.so", "libomni_cuda_proxy.so"}
    found = names(bom)
    assert shipped | {"uv", "omni", "tokio", "hyper", "fuser", "nix", "serde_json", "libc", "rust-std"} <= found
    # Tests and their doubles, procedural macros, what only builds, other systems.
    assert (
        not {"omni-tests", "omni-cuda-sim", "proptest", "insta", "cudarc", "cc", "serde_derive", "tokio-macros"} & found
    )
    assert not any(name.startswith("windows") for name in found)


def test_crates_are_those_of_the_lock(bom: Json) -> None:
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock}
    crates = [component for component in bom["components"] if component["bom-ref"].startswith("pkg:cargo/")]
    assert len(crates) > 100
    for crate in crates:
        assert crate["hashes"][0]["content"] == checksums[crate["name"], crate["version"]], crate
        assert crate["licenses"], crate


def test_packaging_ships_what_is_listed(bom: Json) -> None:
    """A program that is added to the package must be added here."""
    script = (ROOT / "systemd/deb.sh").read_text()
    loops = re.findall(r"^for (?:program|library) in (.+); do$", script, re.M)
    packaged = {name for loop in loops for name in loop.split()} | set(re.findall(r"usr/bin/(\w+)$", script, re.M))
    [top] = [entry["dependsOn"] for entry in bom["dependencies"] if entry["ref"] == "omni"]
    assert packaged == {re.sub(r"^omni:program/|^pkg:pypi/|@.*$", "", ref) for ref in top}


def test_the_same_checkout_gives_the_same_document(bom: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert json.dumps(sbom.sbom()) == json.dumps(bom) and "timestamp" not in bom["metadata"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    dated = sbom.document(bom["components"], {})
    assert dated["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert dated["serialNumber"] != bom["serialNumber"]


def test_only_normal_dependencies_of_linked_crates_are_followed() -> None:
    def package(name: str, source: str | None = "registry") -> Json:
        return {"id": name, "name": name, "version": "1.0+a", "source": source, "license": "MIT / Apache-2.0"}

    def dep(name: str, kind: str | None) -> Json:
        return {"pkg": name, "dep_kinds": [{"kind": kind}]}

    deps = [dep("linked", None), dep("macro", None), dep("tested", "dev"), dep("built", "build")]
    metadata = {
        "packages": [package("own", None), *(package(name) for name in ("linked", "macro", "tested", "built"))],
        "resolve": {"nodes": [{"id": "own", "deps": deps}, {"id": "linked", "deps": []}, {"id": "macro", "deps": []}]},
    }
    lock = {"package": [{"name": "linked", "version": "1.0+a", "checksum": "0" * 64}]}
    inside = sbom.linked("own v1.0+a (/somewhere)\nlinked v1.0+a\nlinked v1.0+a (*)\n")
    components, needs = sbom.crates(metadata, lock, inside)
    assert needs == {"omni:crate/own": ["pkg:cargo/linked@1.0%2Ba"], "pkg:cargo/linked@1.0%2Ba": []}
    own, linked = components
    assert "purl" not in own and "hashes" not in own
    assert linked["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
    assert linked["hashes"] == [{"alg": "SHA-256", "content": "0" * 64}]
