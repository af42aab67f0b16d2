"""The HTML report of a what-if study: one file, nothing fetched from anywhere."""

from zipplan.planner.report.page import render, speed_map

__all__ = ["render", "speed_map"]
