"""What every test shares: hypothesis settings, and which tests this machine can run."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import settings

# On the profile that hypothesis chose (it has its own for CI); no test fails because the machine was busy.
settings.register_profile("zipplan", deadline=None)
settings.load_profile("zipplan")


def _lacks_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "needs a CUDA GPU: torch.cuda.is_available() is false here"


def _lacks_namespaces() -> str | None:
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    try:
        done = subprocess.run(["unshare", "--net", "ip", "link"], capture_output=True, text=True, timeout=10)
    except FileNotFoundError as error:
        return f"needs unshare and ip (apt-get install util-linux iproute2): {error}"
    return None if done.returncode == 0 else f"needs network namespaces: {done.stderr.strip()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason found on this machine, what it cannot run."""
    for marker, lacks in (("device", _lacks_gpu), ("lab", _lacks_namespaces)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = lacks() if marked else None
        if reason:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
