"""Chaos by chance: any case of chaos.py, any way, at any moment, for minutes; says which ranks ended wrongly.

python tests/multi/workers/chaos_at_random.py --minutes 10 --seed 1
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable

import chaos
import click
from forked import Ended

CALL = (
    r"CollectiveError: \w+( AVG)? of \S+ \w+ (\(\w+\) )?\(call \d+ of 4 ranks\) failed on rank \d in stage '[\w ]+': "
)
VICTIM = (
    r"(rank 2 failed first, in stage|no word from ranks? .*\b2\b.*, which ended, stalled or did not make this call)"
)
START = r"CollectiveError: start-up of 4 ranks failed on rank \d in stage '[\w ]+': "
SAID = re.compile(f"({CALL}|{START}).*{VICTIM}", re.DOTALL)


def problems(name: str, ended: list[Ended]) -> list[str]:
    """What is wrong with how the ranks ended."""
    wrong = []
    for rank, end in enumerate(ended):
        if rank == chaos.VICTIM:
            if end.code != chaos.CODES.get(name, 1):
                wrong.append(f"victim: {end}")
        elif end.code != 1 or not SAID.match(str(end.said)) or end.seconds > chaos.TIMEOUT_S + 9:
            wrong.append(f"rank {rank}: {end}")
    return wrong


def outside(signum: int, after_s: float) -> Callable[[list[int]], None]:
    """Someone else sends the victim a signal, wherever it is then."""

    def send(pids: list[int]) -> None:
        time.sleep(after_s)
        os.kill(pids[chaos.VICTIM], signum)

    return send


def nothing(step: chaos.Step) -> None:
    """The signal comes from outside."""


def at_random(minutes: float, seed: int) -> int:
    """Any case, any way, after some good steps or by a signal at any time; how many ranks ended wrongly."""
    chance, end, seen = random.Random(seed), time.monotonic() + 60 * minutes, Counter[str]()
    failed = 0
    while time.monotonic() < end:
        way, good = chance.choice(list(chaos.WAYS)), chance.randrange(6)
        if chance.random() < 0.4:
            name, signum = chance.choice([("killed", signal.SIGKILL), ("terminated", signal.SIGTERM)])
            after_s = chance.uniform(0.1, 2.5)
            what = f"{name} from outside, {way}"
            ended = chaos.start(nothing, way, good=10_000, meddle=outside(signum, after_s))
            detail = f"{what} after {after_s:.2f} s"
        else:
            name = chance.choice([n for n, hurt in chaos.CASES.items() if way != "plain" or hurt not in chaos.IN_CODEC])
            way = "calls" if chaos.CASES[name] in chaos.AT_START else way  # the others have a session by then
            what = f"{name}, {way}"
            ended = chaos.start(chaos.CASES[name], way, good)
            detail = f"{what} after {good} steps"
        seen[what] += 1
        for problem in problems(name, ended):
            failed += 1
            click.echo(f"{detail}: {problem}")
    for what, count in sorted(seen.items()):
        click.echo(f"{count:4} × {what}")
    click.echo(f"{sum(seen.values())} launches, {failed} ranks ended wrongly")
    return failed


@click.command()
@click.option("--minutes", type=float, default=10, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def main(minutes: float, seed: int) -> None:
    """See the top of this file."""
    sys.exit(1 if at_random(minutes, seed) else 0)


if __name__ == "__main__":
    main()
