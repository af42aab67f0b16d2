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
    used, link = np.unique(links, return_inverse=True)
    flow_color, link_color = _numbered(kind), _numbered(capacity[used])
    by_flow, by_link = _Groups(owner, len(kind)), _Groups(link, len(used))
    colors = 0
    while colors != (colors := _count(flow_color) + _count(link_color)):
        flow_color = _refined(flow_color, by_flow.sums(_hashes(link_color)[link]))
        link_color = _refined(link_color, by_link.sums(_hashes(flow_color)[owner]))
    member = np.unique(link_color, return_index=True)[1]
    representative = np.zeros(len(used), dtype=bool)
    representative[member] = True
    mine = representative[link]
    pairs, count = np.unique(np.stack([link_color[link[mine]], flow_color[owner[mine]]]), axis=1, return_counts=True)
    return Fold(flow_color, used[member], pairs[0], pairs[1], count, _count(flow_color))


class _Groups:
    """Sums over the entries of each group."""

    def __init__(self, group: Ints, count: int) -> None:
        self.order = np.argsort(group, kind="stable")
        sizes = np.bincount(group, minlength=count)
        self.some = sizes > 0
        self.start = (np.cumsum(sizes) - sizes)[self.some]

    def sums(self, values: Hashes) -> Hashes:
        """By group, modulo 2⁶⁴; 0 for a group without entries."""
        out = np.zeros(len(self.some), dtype=np.uint64)
        if len(self.start):
            out[self.some] = np.add.reduceat(values[self.order], self.start)
        return out


def _count(colors: Ints) -> int:
    return int(colors.max(initial=-1)) + 1


def _hashes(colors: Ints) -> Hashes:
    """A fixed pseudo-random number for each member's colour, so that a sum stands for a multiset of colours."""
    table = np.random.default_rng(1).integers(0, 2**64, _count(colors), dtype=np.uint64)
    hashes: Hashes = table[colors]
    return hashes


def _refined(colors: Ints, seen: Hashes) -> Ints:
    """New colours: old colour and what was seen, together."""
    mixed = _hashes(colors) * np.uint64(0x9E3779B97F4A7C15) ^ seen
    return _numbered(mixed)


def _numbered(values: NDArray[np.generic]) -> Ints:
    """Colours 0, 1, … for equal values; none is left out, so that their number tells when nothing was told apart."""
    colors: Ints = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return colors
