"""What is here and what will work: versions, codec, GPUs, transports, environment. Looks, and changes nothing."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from zipplan.executor import environment, lab
from zipplan.planner.errors import ConfigError, ZipplanError
from zipplan.planner.plan import Plan, zipplan_version
from zipplan.planner.whatif.study import cache_folder

OK, ABSENT, WRONG = "ok", "absent", "wrong"
PACKAGES = ("torch", "numpy", "simpy", "networkx", "matplotlib", "cuda-bindings", "nvidia-cuda-nvrtc", "zipnn")
TOLD = {
    "NCCL_ALGO": "NCCL does not choose by itself: predict it with simulate --algorithm",
    "NCCL_PROTO": "NCCL does not choose its protocol by itself: predictions assume that it does",
    "NCCL_MAX_NCHANNELS": "plan with --set transport.channels=N",
    "NCCL_MAX_CTAS": "plan with --set transport.channels=N",
    "NCCL_NVLS_ENABLE": "where 0: plan with --set transport.nvls=off",
    "NCCL_P2P_DISABLE": "where 1: GPUs go through host memory; over PCIe, plan with --set node.p2p=off",
    "NCCL_P2P_LEVEL": "where it keeps PCIe peers apart: plan with --set node.p2p=off",
    "NCCL_IB_DISABLE": "where 1: NCCL uses sockets, which no shipped machine describes",
    "NCCL_IB_HCA": "where it leaves NICs out: describe the machine with the others only",
    "NCCL_TUNER_CONFIG_FILE": "a tuner chooses for NCCL; `zipplan export` writes such a file",
}
"""NCCL's variables that change what `native` means, and what to do then.
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"""
NCCL_FILES = ("NCCL_CONF_FILE", "~/.nccl.conf", "/etc/nccl.conf")
"""Where NCCL looks for more variables: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"""


@dataclass(frozen=True)
class Row:
    """One finding. `state`: ok; absent, so that something does not work here; wrong, so that something will fail.

    `source`: where a value comes from, where that is a question. `advice`: what to do, "" for nothing.
    """

    group: str
    what: str
    found: str
    state: str = OK
    source: str = ""
    advice: str = ""


def examine(environ: Mapping[str, str] | None = None) -> list[Row]:
    """Everything worth knowing before a job, in the order in which it is shown. Raises nothing for what is missing."""
    environ = os.environ if environ is None else environ
    torch = _torch()
    return [
        *_versions(torch),
        *_codec(),
        *_gpus(torch),
        *_transports(torch),
        *_variables(environ),
        *_nccl_variables(environ),
        *_works(torch),
    ]


def _torch() -> Any:
    """torch, or the error that its import ends with."""
    try:
        import torch

        return torch
    except Exception as error:  # whatever a broken installation raises
        return error


def _versions(torch: Any) -> Iterator[Row]:
    yield Row("versions", "zipplan", zipplan_version())
    yield Row("versions", "python", platform.python_version())
    for name in PACKAGES:
        try:
            found, state = version(name), OK
        except PackageNotFoundError:
            found, state = "not installed", ABSENT
        advice = "pip install 'zipplan[torch]'" if name == "torch" and state is ABSENT else ""
        if name == "torch" and state is OK and isinstance(torch, Exception):
            found, state, advice = f"{found}, which does not import: {torch}", WRONG, "install torch again"
        yield Row("versions", name, found, state, advice=advice)


def _codec() -> Iterator[Row]:
    from zipplan.kernels import native
    from zipplan.kernels.cuda import build

    try:
        avx2 = bool(native.library().zp_has_avx2())
        yield Row("codec", "CPU", "compiled, with AVX2" if avx2 else "compiled, portable: this CPU has no AVX2")
    except ZipplanError as error:
        yield Row("codec", "CPU", str(error), WRONG)
    except OSError as error:
        yield Row("codec", "CPU", f"does not load: {error}", WRONG, advice="in a checkout: make -B setup")
    compiler = shutil.which("c++") or shutil.which("g++")
    yield Row("codec", "C++ compiler", compiler or "none", OK if compiler else ABSENT)
    try:
        number, arches = build.compiler()
        found = f"NVRTC {number}, compute capability {min(arches) / 10} to {max(arches) / 10}"
        yield Row("codec", "GPU compiler", found)
    except ZipplanError as error:
        yield Row("codec", "GPU compiler", str(error), ABSENT)


def _gpus(torch: Any) -> Iterator[Row]:
    if isinstance(torch, Exception) or not torch.cuda.is_available():
        yield Row("GPUs", "CUDA", "no GPU that torch can use", ABSENT)
        return
    from zipplan.kernels.cuda import build

    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        fits = 10 * about.major + about.minor >= build.LOWEST_ARCH
        yield Row(
            "GPUs",
            f"GPU {number}",
            f"{about.name}, compute capability {about.major}.{about.minor}, {about.total_memory / 2**30:.0f} GiB",
            OK if fits else ABSENT,
            advice="" if fits else f"the codec's kernels need {build.LOWEST_ARCH / 10} or newer: tensors stay raw",
        )
    yield Row("GPUs", "driver", _driver())


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not answer: {error}"
    return (done.stdout or done.stderr).strip().partition("\n")[0] or "nvidia-smi says nothing"


def _transports(torch: Any) -> Iterator[Row]:
    if isinstance(torch, Exception):
        return
    import torch.distributed as dist

    if not dist.is_available():
        yield Row("transports", "torch.distributed", "this torch is built without it", WRONG, advice="another build")
        return
    yield Row("transports", "gloo", "in torch" if dist.is_gloo_available() else "not in torch",
              OK if dist.is_gloo_available() else ABSENT)  # fmt: skip
    if dist.is_nccl_available() and torch.cuda.is_available():
        yield Row("transports", "NCCL", ".".join(map(str, torch.cuda.nccl.version())))
    else:
        why = "in torch, but no GPU" if dist.is_nccl_available() else "not in this torch"
        yield Row("transports", "NCCL", why, ABSENT)


def _variables(environ: Mapping[str, str]) -> Iterator[Row]:
    for variable in environment.VARIABLES:
        given = variable.name in environ and environ[variable.name] != ""
        source = "environment" if given else "default"
        try:
            value = environment.read(variable, environ)
            if variable is environment.PLAN and value:
                plan = Plan.load(Path(value))
                value += f": {plan.topology.name}, {plan.ranks} ranks, {plan.hash[7:19]}…"
            if variable is environment.CACHE_DIR:
                yield _cache(source)
                continue
            yield Row("environment", variable.name, value or "none", source=source)
        except ZipplanError as error:
            yield Row("environment", variable.name, str(error), WRONG, source)
    for name in sorted(environ):
        try:
            environment.check_names({name: environ[name]})
        except ConfigError as error:
            yield Row("environment", name, str(error), WRONG, "environment", "correct its name, or unset it")


def _cache(source: str) -> Row:
    """The cache folder, and whether it can be written."""
    folder = cache_folder().parent
    there = next(f for f in (folder, *folder.parents) if f.exists())
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) if folder.is_dir() else 0
    writable = there.is_dir() and os.access(there, os.W_OK)
    found = f"{folder}, {size / 2**20:.1f} MiB" + ("" if writable else ", not writable")
    advice = "" if writable else "kernels are compiled at every start; set ZIPPLAN_CACHE_DIR to a folder of your own"
    return Row("environment", environment.CACHE_DIR.name, found, OK if writable else ABSENT, source, advice)


def _nccl_variables(environ: Mapping[str, str]) -> Iterator[Row]:
    """NCCL's own, from the environment and its files: only told, never set."""
    found = {name: (value, "environment") for name, value in environ.items() if name.startswith("NCCL_")}
    for place in NCCL_FILES:
        path = Path(environ.get(place, "") if place.startswith("NCCL_") else place).expanduser()
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        except (OSError, UnicodeDecodeError):
            lines = []
        for line in lines:
            name, equals, value = line.partition("#")[0].partition("=")
            if equals:
                found.setdefault(name.strip(), (value.strip(), str(path)))
    for name, (value, source) in sorted(found.items()):
        yield Row("NCCL's variables", name, value, source=source, advice=TOLD.get(name, ""))


def _works(torch: Any) -> Iterator[Row]:
    """What will and what will not work here, each with the reason."""
    usable = not isinstance(torch, Exception)
    gpu = usable and torch.cuda.is_available()
    no_torch = "torch is missing: pip install 'zipplan[torch]'"
    no_gpu = "no GPU here; plans for GPUs can be made anywhere"
    plots = importlib.util.find_spec("matplotlib") is not None
    why = lab.missing()
    for what, works, reason in (
        ("plan, simulate, explain, whatif, validate", True, ""),
        ("plots: whatif -o report.html", plots, "matplotlib is missing: pip install 'zipplan[plot]'"),
        ("bench, run, calibrate and training on gloo", usable, no_torch),
        ("the same on NCCL", gpu, no_gpu if usable else no_torch),
        ("the lab: make lab", usable and why is None, why or no_torch),
    ):
        yield Row("works here", what, "yes" if works else "no", OK if works else ABSENT, advice="" if works else reason)
