"""Training workloads as data; each number with its source (docs/workloads.md)."""
