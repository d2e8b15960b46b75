"""Pipelines on Spark: generations, attempts, checkpoints, restarts. What `penstock run` does."""
