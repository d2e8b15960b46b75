"""Applications: the contents of a file, run on Spark and in a worker."""
