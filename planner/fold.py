"""Symmetry folding: flows that must get equal rates, and links that must carry equal load, are computed once.

The partition is the coarsest equitable one (colour refinement): all flows of a class cross equally many links of every
link class, all links of a class carry equally many flows of every flow class. Max-min filling then treats members of a
class alike at every step, so the folded rates are the unfolded ones, to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Fold:
    """Classes of a set of flows and of the links that they cross, and how the classes meet.

    Entry i: one link of class `links[i]` carries `flows_per_link[i]` flows of class `owner[i]`.
    """

    flow_class: Ints  # by flow
    link_member: Ints  # one link of each link class
    links: Ints
    owner: Ints
    flows_per_link: Ints
    classes: int  # of flows


def fold(links: Ints, owner: Ints, kind: Ints, capacity: NDArray[np.float64]) -> Fold:
    """Fold flows (flow `owner[i]` crosses link `links[i]`); `kind` tells flows of unlike size apart."""
    used = np.flatnonzero(np.bincount(links, minlength=len(capacity)))
    place = np.zeros(len(capacity), dtype=np.int64)
    place[used] = np.arange(len(used))
    link = place[links]
    flow_color, link_color = _numbered(kind), _numbered(capacity[used])
    colors = 0
    while colors != (colors := _count(flow_color) + _count(link_color)):
        flow_color = _refined(flow_color, _sums(link_color, link, owner, len(kind)))
        link_color = _refined(link_color, _sums(flow_color, owner, link, len(used)))
    member = np.unique(link_color, return_index=True)[1]
    representative = np.zeros(len(used), dtype=bool)
    representative[member] = True
    mine = representative[link]
    classes = _count(flow_color)
    pairs, count = np.unique(link_color[link[mine]] * classes + flow_color[owner[mine]], return_counts=True)
    return Fold(flow_color, used[member], *np.divmod(pairs, max(classes, 1)), count, classes)


def _sums(colors: Ints, seen: Ints, group: Ints, count: int) -> Hashes:
    """By group, the multiset of the colours of what it sees, as a number: a sum of fixed pseudo-random numbers.

    Two sums of 32-bit halves in float64, which are exact up to 2²¹ members of a group and, unlike a sum modulo 2⁶⁴,
    need no sorting.
    """
    table = np.random.default_rng(1).integers(0, 2**64, _count(colors), dtype=np.uint64)
    halves = (table & np.uint64(0xFFFFFFFF), table >> np.uint64(32))
    low, high = (np.bincount(group, half.astype(np.float64)[colors][seen], count).astype(np.uint64) for half in halves)
    return low * np.uint64(0xD6E8FEB86659FD93) ^ high


def _count(colors: Ints) -> int:
    return int(colors.max(initial=-1)) + 1


def _refined(colors: Ints, seen: Hashes) -> Ints:
    """New colours: old colour and what was seen, together."""
    return _numbered(colors.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ seen)


def _numbered(values: NDArray[np.generic]) -> Ints:
    """Colours 0, 1, … for equal values; none is left out, so that their number tells when nothing was told apart."""
    colors: Ints = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return colors
