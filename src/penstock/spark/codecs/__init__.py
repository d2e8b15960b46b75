"""Codecs: how a connector's bytes become columns in Spark, and how rows become bytes again.

`names()` and `about(name)` list them, and need no Spark.
"""

from penstock.spark.codecs.codec import About
from penstock.spark.codecs.registry import about, names

__all__ = ["About", "about", "names"]
