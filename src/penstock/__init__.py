"""Penstock: durable event streams into and out of Spark."""

__version__ = "0.1.0.dev0"
