"""The lab comes up, carries torchrun, is as slow as asked, and is gone afterwards whatever happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zipplan.executor.lab import Lab
from zipplan.planner.errors import ConfigError

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

WORKER = """
import json, os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), 2_500_000
data = torch.zeros(size, dtype=torch.uint8)
dist.barrier()
start = time.perf_counter()
dist.send(data, 1) if rank == 0 else dist.recv(data, 0)
dist.barrier()
took = time.perf_counter() - start
interfaces = sorted(os.listdir("/sys/class/net"))
if rank == 0:
    print(json.dumps({"rate": size / took, "world": dist.get_world_size(), "interfaces": interfaces}))
dist.destroy_process_group()
"""
SLEEPER = "import os, sys, time; open(sys.argv[1] + os.environ['RANK'], 'w').close(); time.sleep(300)"


def network() -> str:
    """Links and names of namespaces that this machine has now."""
    return "".join(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for command in (["ip", "-brief", "link"], ["ip", "netns"])
    )


def inside() -> list[str]:
    """Command lines of running processes of labs."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "zipplan.executor.lab.inside" in words:
            found.append(" ".join(words))
    return found


def gone(marker: str) -> bool:
    """Whether every lab process with `marker` in its command line ends within ten seconds."""
    for _ in range(100):
        if not any(marker in line for line in inside()):
            return True
        time.sleep(0.1)
    return False


def test_a_link_is_as_slow_as_asked(tmp_path: Path) -> None:
    """One message of 2.5 MB over 10 MB/s takes a quarter of a second or more; nothing of the lab is seen outside."""
    before = network()
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    done = Lab(2, 10_000_000).run([str(script)], timeout=100, capture=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["world"] == 2
    assert {"eth0", "lo"} <= set(said["interfaces"])
    assert not any(name.startswith(("p", "sw")) for name in said["interfaces"])  # the bridge is not the hosts'
    assert said["rate"] < 1.05 * 10_000_000
    assert network() == before


def test_a_host_that_fails_ends_the_lab(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '1' else time.sleep(300)\n")
    before = network()
    done = Lab(2, None).run([str(script)], timeout=100, capture=True)
    assert done.returncode != 0
    assert gone(str(script))
    assert network() == before


def test_the_time_limit_ends_everything(tmp_path: Path) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text(SLEEPER)
    before = network()
    with pytest.raises(subprocess.TimeoutExpired):
        Lab(2, None).run([str(script), str(tmp_path / "here")], timeout=5, capture=True)
    assert gone(str(script))
    assert network() == before


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_from_outside_nothing_stays(tmp_path: Path, how: signal.Signals) -> None:
    """Also by a signal that nobody can catch."""
    before = network()
    script = tmp_path / "sleeps.py"
    script.write_text(SLEEPER)
    command = [sys.executable, "-m", "zipplan.executor.lab", "run", "--hosts", "2", "--", str(script), f"{tmp_path}/up"]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            if all((tmp_path / f"up{rank}").exists() for rank in range(2)):
                break
            time.sleep(0.1)
        else:
            pytest.fail("the ranks did not start within a minute")
        os.kill(started.pid, how)
        started.wait(timeout=20)
    finally:
        started.kill()
        started.wait()
    assert gone(str(script))
    assert network() == before


def test_two_labs_side_by_side(tmp_path: Path) -> None:
    script = tmp_path / "hello.py"
    script.write_text(f"open({str(tmp_path / 'said')!r} + __import__('sys').argv[1], 'w').close()\n")
    start = [sys.executable, "-m", "zipplan.executor.lab", "run", "--hosts", "1", "--"]
    both = [subprocess.Popen([*start, str(script), name], stderr=subprocess.PIPE, text=True) for name in "ab"]
    for one in both:
        _, errors = one.communicate(timeout=100)
        assert one.returncode == 0, errors
    assert (tmp_path / "saida").exists()
    assert (tmp_path / "saidb").exists()


def test_numbers_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="lab: 0 hosts; expected 1 to 64"):
        Lab(0, None)
    with pytest.raises(ConfigError, match="a rate of 5 bytes/s; expected"):
        Lab(2, 5)
