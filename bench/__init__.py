"""Benchmarks: ratios measured inside one run."""
