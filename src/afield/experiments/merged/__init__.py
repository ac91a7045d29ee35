"""Runs of a benchmark of merges: which there are, and how merged models are executed."""

__all__ = ["MERGE_BASELINES"]

# Rows that every table of merges has beside the merges.
MERGE_BASELINES = ("base", "best_expert", "logit_ensemble", "target_expert")
