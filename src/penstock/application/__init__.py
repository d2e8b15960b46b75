"""Applications: what is in a file, run on Spark and in a worker."""
