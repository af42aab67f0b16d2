"""Machines and fabrics: from names, TOML and the files people have to ranks, directed links and paths."""

from zipplan.planner.topology.cluster import Cluster, Link, build_cluster
from zipplan.planner.topology.graph import bisection, min_cut
from zipplan.planner.topology.importers import Imported, import_text
from zipplan.planner.topology.load import load_described, load_machine, parse_machine, shipped
from zipplan.planner.topology.model import Cpu, Gpu, Machine
from zipplan.planner.topology.model import ResolvedTransport as Transport

__all__ = [
    "Cluster",
    "Cpu",
    "Gpu",
    "Imported",
    "Link",
    "Machine",
    "Transport",
    "bisection",
    "build_cluster",
    "import_text",
    "load_described",
    "load_machine",
    "min_cut",
    "parse_machine",
    "shipped",
]
