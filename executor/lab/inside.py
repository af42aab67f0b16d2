"""Process 1 of a lab: builds hosts and links, starts torchrun on each host, ends with the worst exit code.

Runs inside the namespaces that `Lab.run` made: what it builds needs no tearing down.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from zipplan.executor.lab import Lab

INTERFACE = "eth0"
_PORT = 29400
# A token bucket lets one burst pass at full speed, which short messages would show as a link that is too fast; but it
# must hold one segment, and what arrives between two ticks of a busy machine. So segments are short as well.
_BURST_SECONDS, _BURST_BYTES = 0.0002, (16_000, 64_000)
_HEADERS = 1_000  # of the packets of one segment
_QUEUE_SECONDS = 0.05  # how long a packet may wait: TCP fills it and then adapts, as in a switch
_GRACE = 10.0  # seconds for other hosts to end by themselves after one has failed
# torchrun keeps a failure to itself for five minutes while other hosts still run; so each rank leaves its exit code.
_CODES = Path("/run/codes")
_RANK = f'"$@"; code=$?; echo $code >{_CODES}/$RANK.new; mv {_CODES}/$RANK.new {_CODES}/$RANK; exit $code'


def address(host: int) -> str:
    """IPv4 address of a host; text order is host order, which is how torchrun numbers its nodes."""
    return f"10.0.0.{101 + host}"


def build(lab: Lab) -> None:
    """A bridge, and for each host a namespace h0, h1, … with a shaped link to the bridge."""
    _do("mount", "-t", "tmpfs", "none", "/run")  # where `ip netns` keeps names: out of the machine's sight
    _CODES.mkdir()
    names = "".join(f"{address(host)} h{host}\n::ffff:{address(host)} h{host}\n" for host in range(lab.hosts))
    Path("/run/hosts").write_text(f"127.0.0.1 localhost\n{names}")
    _do("mount", "--bind", "/run/hosts", "/etc/hosts")  # without names, torch warns about every connection
    _do("ip", "link", "add", "sw", "type", "bridge")
    _do("ip", "link", "set", "sw", "up")
    for host in range(lab.hosts):
        name, port = f"h{host}", f"p{host}"
        _do("ip", "netns", "add", name)
        _do("ip", "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", name)
        _do("ip", "link", "set", port, "master", "sw", "up")
        _do("ip", "-n", name, "addr", "add", f"{address(host)}/24", "dev", INTERFACE)
        _do("ip", "-n", name, "link", "set", INTERFACE, "up")
        _do("ip", "-n", name, "link", "set", "lo", "up")
        if lab.rate is not None:
            _shape(port, lab.rate)
            _shape(INTERFACE, lab.rate, "-n", name)


def _shape(device: str, rate: int, *where: str) -> None:
    burst = min(max(_BURST_BYTES[0], round(rate * _BURST_SECONDS)), _BURST_BYTES[1])
    _do("ip", *where, "link", "set", device, "gso_max_size", str(burst - _HEADERS))
    limit = burst + max(1_000_000, round(rate * _QUEUE_SECONDS))
    shape = ("tbf", "rate", f"{8 * rate}bit", "burst", str(burst), "limit", str(limit))
    _do("tc", *where, "qdisc", "add", "dev", device, "root", *shape)


def start(lab: Lab, host: int, command: list[str]) -> subprocess.Popen[bytes]:
    """torchrun on one host, one rank; the hosts find each other over the links (c10d rendezvous on host 0)."""
    torchrun = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={lab.hosts}", "--nproc-per-node=1", "--max-restarts=0"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={address(0)}:{_PORT}", f"--rdzv-conf=is_host={int(host == 0)}"),
        *("--rdzv-id=lab", f"--local-addr={address(host)}"),
    ]
    rank = ["--no-python", "sh", "-c", _RANK, "sh", sys.executable, *command]
    env = {"OMP_NUM_THREADS": "1", **os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "TP_SOCKET_IFNAME": INTERFACE}
    return subprocess.Popen(["ip", "netns", "exec", f"h{host}", *torchrun, *rank], env=env, stdin=subprocess.DEVNULL)


def wait(hosts: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all; once one has failed the others get a few seconds. Returns the first code that is not 0."""
    deadline, worst = None, 0
    while any(host.poll() is None for host in hosts):
        time.sleep(0.02)
        failed = [*(host.returncode for host in hosts if host.returncode), *failed_ranks()]
        if failed and deadline is None:
            deadline, worst = time.monotonic() + _GRACE, failed[0]
        if deadline is not None and time.monotonic() > deadline:
            return worst
    return worst or next((host.returncode for host in hosts if host.returncode), 0)


def failed_ranks() -> list[int]:
    """Exit codes, other than 0, of ranks that have ended."""
    codes = (int(path.read_text()) for path in _CODES.iterdir() if path.suffix == "")
    return [code for code in codes if code]


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"zipplan: error: lab: {' '.join(command)}: {done.stderr.strip()}")


def main() -> None:
    """Entry point: one JSON argument, [fields of Lab, command]."""
    fields, command = json.loads(sys.argv[1])
    lab = Lab(**fields)
    build(lab)
    code = wait([start(lab, host, command) for host in range(lab.hosts)])
    sys.exit(code if code > 0 else 1 if code else 0)


if __name__ == "__main__":
    main()
