"""What a communication library does with one exchange: algorithms, protocols, chunks; modelled on NCCL, RCCL, gloo."""

from zipplan.planner.transport.constants import STARTS, Constants, Tables
from zipplan.planner.transport.transport import ALGORITHMS, LOWERINGS, Alone, Carried, Transport

__all__ = ["ALGORITHMS", "LOWERINGS", "STARTS", "Alone", "Carried", "Constants", "Tables", "Transport"]
