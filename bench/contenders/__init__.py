"""The programs that benchmarks compare, one per file."""
