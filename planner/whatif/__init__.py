"""What if a link, the codec, the machine or the message were different: sweeps of planned cases, in parallel."""

from zipplan.planner.whatif.case import Case, Outcome, StepCase, Where, evaluate
from zipplan.planner.whatif.levers import Flip, sensitivity, tight_link
from zipplan.planner.whatif.study import Study, read_sweep, run

__all__ = [
    "Case", "Flip", "Outcome", "StepCase", "Study", "Where", "evaluate", "read_sweep", "run", "sensitivity",
    "tight_link",
]  # fmt: skip
