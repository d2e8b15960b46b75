"""Penstock: durable event streams into and out of Spark."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.watermarked import watermarked

__all__ = ["__version__", "watermarked"]

__version__ = "0.1.0.dev0"


def __getattr__(name: str) -> object:
    """What needs Spark is imported when it is first used."""
    if name == "watermarked":
        from penstock.spark.watermarked import watermarked

        return watermarked
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
