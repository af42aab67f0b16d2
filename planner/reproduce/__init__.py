"""The ZipCCL paper's results predicted from topology, codec and workload, and what other systems published."""

from __future__ import annotations

from zipplan.planner.reproduce.rows import Row, all_rows

__all__ = ["Row", "all_rows"]
