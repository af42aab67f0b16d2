"""What a communication library does with one exchange: algorithms, protocols, chunks; modelled on NCCL, RCCL, gloo."""

from zipplan.planner.transport.constants import STARTS, Constants
from zipplan.planner.transport.transport import ALGORITHMS, Carried, Transport

__all__ = ["ALGORITHMS", "STARTS", "Carried", "Constants", "Transport"]
