"""Runs pipelines on Spark, for `penstock run`: generations, attempts, checkpoints, restarts."""
