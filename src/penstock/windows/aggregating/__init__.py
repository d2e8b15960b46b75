"""What windows compute, in terms of Arrow and NumPy arrays: a file for each family."""
