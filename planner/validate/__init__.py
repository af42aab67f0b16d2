"""The simulator against measurements: published tables, or a user's own nccl-tests log."""
