"""Sensitivity: how far a link, the codec or the data must change before another schedule wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zipplan.planner.errors import ConfigError
from zipplan.planner.settings import SETTINGS
from zipplan.planner.whatif.case import Case, Where

REACH = 32.0
"""Factors from 1/32 to 32 are tried: further off it is another machine, not another guess at this one."""
_BISECTIONS = 5  # a factor of 2 to 2^(1/32): 2 %


@dataclass(frozen=True)
class Flip:
    """At `factor` × what it is now, `key` makes `to` the choice; no flip within reach: factor and to are None."""

    key: str
    rises: bool
    factor: float | None
    to: str | None

    @property
    def text(self) -> str:
        """One line for a person."""
        way = "above" if self.rises else "below"
        if self.factor is None:
            return f"{self.key}: no other choice up to {way} {REACH if self.rises else 1 / REACH:g}×"
        return f"{self.key}: flips to {self.to} {way} {self.factor:.2f}×"


def tight_link(case: Where) -> str:
    """The key of the links that bound the native schedule: 'link.nic.bandwidth'.

    Of a step: the NICs, or on one node the narrowest link between its first two ranks.
    """
    if isinstance(case, Case):
        search = case.search()
        found = search.fullest(search.run(search.schedules[0], case.size), 1)
        kind = found[0].link.kind if found else "nic"
    else:
        cluster = case.cluster()
        inside = cluster.path(0, 1) if cluster.nodes == 1 and cluster.ranks > 1 else ()
        kind = min((cluster.links[i] for i in inside), key=lambda link: link.bandwidth).kind if inside else "nic"
    return f"link.{'nic' if kind == 'fabric' else kind}.bandwidth"  # fabric links are as wide as the NICs make them


def sensitivity(case: Case, each: Callable[[], object] = lambda: None) -> list[Flip]:
    """The nearest flips of the bounding link's rate and latency, of codec speed, launch and ratio, both ways.

    `each` is called once per lever and way. Every step simulates all candidates anew.
    """
    link = tight_link(case)
    levers = [link, link.replace("bandwidth", "latency"), "codec.speed", "codec.launch", "codec.ratio"]
    chosen = case.search().decide(case.size).best.label
    flips = []
    for key in levers:
        for rises in (False, True):
            flips.append(_nearest(case, key, rises, chosen))
            each()
    return flips


def _nearest(case: Case, key: str, rises: bool, chosen: str) -> Flip:
    def choice(factor: float) -> str:
        changed = case.changed(key, f"{factor!r}x")
        return changed.search().decide(case.size).best.label

    assert SETTINGS[key].scales
    kept, factor = 1.0, 2.0 if rises else 0.5
    try:
        while (other := choice(factor)) == chosen:
            kept, factor = factor, factor * (2.0 if rises else 0.5)
            if not 1 / REACH <= factor <= REACH:
                return Flip(key, rises, None, None)
    except ConfigError:  # a latency of 0 has no factor
        return Flip(key, rises, None, None)
    for _ in range(_BISECTIONS):
        middle = (kept * factor) ** 0.5
        found = choice(middle)
        if found == chosen:
            kept = middle
        else:
            factor, other = middle, found
    return Flip(key, rises, factor, other)
