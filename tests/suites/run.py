"""Runs the test suites of others on the simulated driver, without the shim and with it, and compares each outcome.

Usage: run.py BIN FOLDER [SUITE...]

BIN holds what `make build` or `cargo build` makes (the shim, the simulated driver, `cuda-sim-card`); the suites are
fetched to FOLDER and built there. A test that needs what is not simulated (kernels, above all) fails on the driver
alone; what counts is that it ends in the same way with the shim. Exits 1 when a test does not, 2 when a suite could not
be fetched.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

TOOLS = ("numpy", "pytest", "pytest-xdist", "pytest-timeout", "cffi", "psutil")
PYTHON = {
    "cuda12": ("numba-cuda[cu12]==0.30.4", "filecheck", "ml_dtypes", *TOOLS),
    "cuda13": ("cuda-bindings==13.4.4", "cuda-core==1.1.1", *TOOLS),
}
CRATES = {"cudarc": "0.19.10", "rustacuda": "0.1.3", "cust": "0.3.2"}
CUDARC_FEATURES = "std,driver,cuda-12080,dynamic-loading"
SOURCES = {
    "cuda-core": ("https://github.com/NVIDIA/cuda-python", "cuda-core-v1.1.1", "cuda_core/tests"),
    "cuda-bindings": ("https://github.com/NVIDIA/cuda-python", "v13.4.4", "cuda_bindings/tests"),
}
# Drivers before and since managed pools.
DRIVERS = ("12.9", "13.4")
LIMIT = 24 << 30
# No test here takes so long; one that waits for a kernel's result waits for ever.
PATIENCE = 60
SUITE_PATIENCE = 3600

NUMBA = ("-p", "numba_fixture", "--import-mode=importlib", "--pyargs", "numba.cuda.tests.cudadrv")

Outcomes = dict[str, str]


@dataclass(frozen=True)
class Suite:
    """A suite: how it is fetched and built, and how it is run in an environment."""

    name: str
    prepare: Callable[[Path], None]
    run: Callable[[Path, dict[str, str]], Outcomes]
    drivers: tuple[str, ...] = DRIVERS


def sh(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    subprocess.run([str(word) for word in command], cwd=cwd, env=env, check=True, stdout=subprocess.DEVNULL)


def python(folder: Path, name: str) -> Path:
    return folder / name / "bin/python"


def prepare_python(name: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        if not python(folder, name).exists():
            sh(sys.executable, "-m", "venv", folder / name)
        sh(python(folder, name), "-m", "pip", "install", "-q", *PYTHON[name])

    return prepare


def prepare_sources(name: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        prepare_python("cuda13")(folder)
        url, tag, _ = SOURCES[name]
        if not (folder / name).exists():
            sh("git", "clone", "-q", "--depth", "1", "--branch", tag, url, folder / f"{name}.new")
            (folder / f"{name}.new").rename(folder / name)

    return prepare


def prepare_crate(name: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        fetch = folder / "crates"
        (fetch / "src").mkdir(parents=True, exist_ok=True)
        (fetch / "src/lib.rs").touch()
        dependencies = "".join(
            f'{crate} = {{ version = "={version}", default-features = false }}\n' for crate, version in CRATES.items()
        )
        dependencies = dependencies.replace(
            '"=0.19.10"', '"=0.19.10", features = ["driver", "cuda-12080", "dynamic-loading"]'
        )
        (fetch / "Cargo.toml").write_text(
            f'[package]\nname = "suites"\nversion = "0.0.0"\n[workspace]\n[dependencies]\n{dependencies}'
        )
        sh("cargo", "vendor", "-q", "vendor", cwd=fetch)
        own = folder / name
        if not own.exists():
            sh("cp", "-r", fetch / "vendor" / name, own)
            # The copy is a workspace of its own, not part of the one around it.
            with (own / "Cargo.toml").open("a") as manifest:
                manifest.write("\n[workspace]\n")

    return prepare


def run_pytest(
    venv: str, *arguments: str, cwd: Callable[[Path], Path] = lambda folder: folder
) -> Callable[[Path, dict[str, str]], Outcomes]:
    def run(folder: Path, env: dict[str, str]) -> Outcomes:
        report = folder / "report.xml"
        report.unlink(missing_ok=True)
        # A process that runs the tests, and another that survives them.
        options = [
            "-q",
            "-n1",
            "--max-worker-restart=1000",
            f"--timeout={PATIENCE}",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
        ]
        command = [str(python(folder, venv)), "-m", "pytest", *options, *arguments]
        subprocess.run(
            command,
            cwd=cwd(folder),
            env=env,
            check=False,
            timeout=SUITE_PATIENCE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        outcomes = {}
        for case in ElementTree.parse(report).iter("testcase"):
            kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            outcomes[f"{case.get('classname')}::{case.get('name')}"] = kinds[0] if kinds else "passed"
        return outcomes

    return run


def run_cargo(name: str, *features: str) -> Callable[[Path, dict[str, str]], Outcomes]:
    def run(folder: Path, env: dict[str, str]) -> Outcomes:
        # As much of a toolkit as build scripts look for.
        toolkit = folder / "toolkit"
        (toolkit / "include").mkdir(parents=True, exist_ok=True)
        (toolkit / "include/cuda.h").touch()
        if not (toolkit / "lib64").exists():
            (toolkit / "lib64").symlink_to(folder / "driver")
        build = {**os.environ, "CUDA_LIBRARY_PATH": str(toolkit), "CUDA_PATH": str(toolkit)}
        build["CARGO_TARGET_DIR"] = str(folder / "target")
        options = ["--manifest-path", str(folder / name / "Cargo.toml"), "--tests", *features]
        built = subprocess.run(
            ["cargo", "test", *options, "--no-run", "--message-format=json"],
            env=build,
            check=True,
            capture_output=True,
            text=True,
        )
        programs = re.findall(r'"executable":"([^"]+)"', built.stdout)
        outcomes: Outcomes = {}
        for program in programs:
            kind = re.sub(r"-[0-9a-f]{16}$", "", Path(program).name)
            listed = subprocess.run([program, "--list"], env=env, check=True, capture_output=True, text=True).stdout
            # Each by itself: some end their process, and these would take the rest with them.
            for test in re.findall(r"^(\S+): test$", listed, re.MULTILINE):
                try:
                    ended = subprocess.run(
                        [program, "--exact", test], env=env, check=False, capture_output=True, timeout=PATIENCE
                    )
                    outcomes[f"{kind}::{test}"] = "passed" if ended.returncode == 0 else f"ends with {ended.returncode}"
                except subprocess.TimeoutExpired:
                    outcomes[f"{kind}::{test}"] = "hangs"
        return outcomes

    return run


def source(name: str) -> Callable[[Path], Path]:
    return lambda folder: folder / name / SOURCES[name][2]


SUITES = (
    Suite(
        "numba-cuda",
        prepare_python("cuda12"),
        run_pytest("cuda12", *NUMBA),
    ),
    Suite("cuda-core", prepare_sources("cuda-core"), run_pytest("cuda13", ".", cwd=source("cuda-core")), ("13.4",)),
    Suite(
        "cuda-bindings",
        prepare_sources("cuda-bindings"),
        run_pytest("cuda13", ".", cwd=source("cuda-bindings")),
        ("13.4",),
    ),
    Suite(
        "cudarc", prepare_crate("cudarc"), run_cargo("cudarc", "--no-default-features", "--features", CUDARC_FEATURES)
    ),
    Suite("rustacuda", prepare_crate("rustacuda"), run_cargo("rustacuda")),
    Suite("cust", prepare_crate("cust"), run_cargo("cust")),
)


def environment(binaries: Path, folder: Path, driver: str, mode: str) -> dict[str, str]:
    """A fresh card with this driver, and the shim before it unless the mode is "alone"."""
    sh("rm", "-rf", folder / "card")
    (folder / "card").mkdir(parents=True)
    sh(binaries / "cuda-sim-card", "create", folder / "card/dev", "--memory", "24GiB", "--driver", driver)
    libraries = folder / "driver"
    libraries.mkdir(exist_ok=True)
    for name in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"):
        (libraries / name).unlink(missing_ok=True)
        (libraries / name).symlink_to(binaries / "libcuda_sim.so")
    env = {**os.environ, "OMNI_CUDA_SIM": str(folder / "card/dev"), "LD_LIBRARY_PATH": str(libraries)}
    env["PYTHONPATH"] = str(Path(__file__).parent)
    if mode != "alone":
        env["LD_PRELOAD"] = str(binaries / "libomni_cuda.so")
        env["OMNI_GPU_LIMIT_BYTES"], env["OMNI_GPU_MODE"] = str(LIMIT), mode
        env["OMNI_GPU_ACCOUNT"] = str(folder / "card/account")
    return env


def compare(suite: Suite, binaries: Path, folder: Path) -> list[str]:
    """Lines about tests that end in another way with the shim than without it."""
    different = []
    for driver in suite.drivers:
        alone = suite.run(folder, environment(binaries, folder, driver, "alone"))
        passed = sum(outcome == "passed" for outcome in alone.values())
        print(f"{suite.name}, driver {driver}: {len(alone)} tests, {passed} pass on the driver alone", flush=True)
        for mode in ("device", "unified"):
            shimmed = suite.run(folder, environment(binaries, folder, driver, mode))
            for test in sorted(alone.keys() | shimmed.keys()):
                before, after = alone.get(test, "absent"), shimmed.get(test, "absent")
                if before != after:
                    different.append(
                        f"{suite.name}, driver {driver}, {mode}: {test}: {before} alone, {after} with the shim"
                    )
        print(
            "\n".join(line for line in different if f"driver {driver}," in line) or "  the same with the shim",
            flush=True,
        )
    return different


def main() -> int:
    binaries, folder, wanted = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:]
    folder.mkdir(parents=True, exist_ok=True)
    different, missing = [], []
    for suite in SUITES:
        if wanted and suite.name not in wanted:
            continue
        try:
            suite.prepare(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            missing.append(suite.name)
            print(f"{suite.name}: cannot be fetched: {error}", flush=True)
            continue
        different += compare(suite, binaries, folder)
    return 1 if different else 2 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
