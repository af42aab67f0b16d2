"""Loads the kernels on the current CUDA device and launches them on a stream, through the driver API."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable

from zipplan.kernels.codec import Codec
from zipplan.kernels.cuda import build
from zipplan.kernels.cuda.launch import Launch, ids
from zipplan.planner.errors import DeviceError


def run(codec: Codec, launches: Iterable[Launch], device: int, stream: int) -> None:
    """Puts launches on `stream` (a CUstream) of `device`, whose primary context is current. Waits for nothing."""
    api, codec_id, dtype_id = driver(), *ids(codec)
    for step in launches:
        parameters = (ctypes.c_void_p * len(step.parameters))(*map(ctypes.addressof, step.parameters))
        checked(
            api.cuLaunchKernel(
                function(codec_id, dtype_id, device, step.kernel),
                *step.grid, 1, step.block, 1, 1,
                0, stream, ctypes.addressof(parameters), 0,
            ),
            f"launching {step.kernel}",
        )  # fmt: skip


@functools.cache
def function(codec: int, dtype: int, device: int, name: str):  # type: ignore[no-untyped-def]
    return checked(driver().cuModuleGetFunction(module(codec, dtype, device), name.encode()), f"finding {name}")


@functools.cache
def module(codec: int, dtype: int, device: int):  # type: ignore[no-untyped-def]
    """The loaded kernels of one codec and dtype; lives as long as the process, as the device's primary context does."""
    api = driver()
    attribute = api.CUdevice_attribute
    handle = checked(api.cuDeviceGet(device), "finding the device")
    major, minor = (
        checked(api.cuDeviceGetAttribute(a, handle), "asking for the compute capability")
        for a in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    code, kind = build.module(codec, dtype, 10 * major + minor)
    what = f"loading {kind} made by NVRTC {build.compiler()[0]} on compute capability {major}.{minor}"
    return checked(api.cuModuleLoadData(code), what)


@functools.cache
def driver():  # type: ignore[no-untyped-def]
    try:
        from cuda.bindings import driver as bindings  # type: ignore[import-untyped]
    except ImportError as error:
        raise DeviceError(f"cuda-bindings cannot be imported ({error}); {build.INSTALL}") from error
    try:
        status, *_ = bindings.cuInit(0)
    except RuntimeError as error:  # what cuda-bindings raises for a library that is not there
        raise DeviceError(
            f"no CUDA driver can be loaded ({error}); where there is a GPU install NVIDIA's driver, else use the codec "
            "on the CPU (zipplan.kernels)"
        ) from error
    if int(status):
        raise DeviceError(f"the CUDA driver does not start ({status!r}); use the codec on the CPU")
    return bindings


def checked(result, doing: str):  # type: ignore[no-untyped-def]
    status, *values = result
    if int(status):
        raise DeviceError(
            f"CUDA: {doing}: {status!r}; a driver older than the compiler refuses its code: update the driver, install "
            "the NVRTC of the driver's CUDA version, or use the codec on the CPU"
        )
    return values[0] if values else None
