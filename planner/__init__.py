"""zipplan.planner: topology → candidates → verify → simulate → choose → plan; never imports torch."""
