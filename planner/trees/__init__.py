"""Irregular machines: how fast any schedule could be (cuts), and trees that come close to it."""

from zipplan.planner.trees.cut import Cut, CutBound, cut_bound, two_phase_bound

__all__ = ["Cut", "CutBound", "cut_bound", "two_phase_bound"]
