"""The lab: n hosts on one Linux machine, joined by rate-limited links, and torchrun on each of them.

A host is a network namespace with one link to a bridge; `tc tbf` limits the link in both directions. All of it lives in
network, mount and process namespaces of its own: when the first process in there ends, however it ends, the kernel ends
every other and removes hosts, links and bridge. So nothing is left behind, no name can clash with another lab or with
the machine's own network, and two labs can run side by side.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from zipplan.planner.errors import ConfigError

TOOLS = {"unshare": "util-linux", "setpriv": "util-linux", "mount": "mount", "ip": "iproute2", "tc": "iproute2"}
MAX_HOSTS = 64


@dataclass(frozen=True)
class Lab:
    """`hosts` hosts with one rank each; every link carries `rate` bytes/s each way (None: as fast as the machine).

    Raises ConfigError for numbers that cannot be.
    """

    hosts: int
    rate: int | None

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise ConfigError(f"lab: {self.hosts} hosts; expected 1 to {MAX_HOSTS}")
        if self.rate is not None and not 10**5 <= self.rate <= 10**11:
            raise ConfigError(f"lab: a rate of {self.rate} bytes/s; expected 0.1 MB/s to 100 GB/s")

    def run(
        self, command: Sequence[str], timeout: float, capture: bool = False, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """torchrun `command` (a script, or -m module, and its arguments) on every host; exit code of the worst host.

        timeout: seconds, then everything in the lab is killed and TimeoutExpired raised. capture: keep stdout and
        stderr as text instead of passing them on. Raises ConfigError when this machine cannot build a lab.
        """
        why = missing()
        if why is not None:
            raise ConfigError(f"no lab here: {why}")
        inside = [sys.executable, "-m", "zipplan.executor.lab.inside", json.dumps([asdict(self), list(command)])]
        return subprocess.run(
            [*_alone(), *inside], timeout=timeout, capture_output=capture, text=True, env={**os.environ, **(env or {})}
        )


def missing() -> str | None:
    """Why no lab can be built here; None when one can."""
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian package {package})"
    made = subprocess.run(
        [*_alone(), "sh", "-c", "mount -t tmpfs none /run && ip link add sw type bridge"],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        who = "root here" if os.geteuid() == 0 else "not root, and user namespaces are"
        return f"{who} not allowed to make namespaces: {made.stderr.strip()}"
    return None


def _alone() -> list[str]:
    """What to put before a command so that it becomes process 1 of its own world and dies with its parent."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return [
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *("unshare", *user, "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"),
    ]
