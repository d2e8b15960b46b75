"""Applications in YAML: what stands in the file, every mistake in it at once, and what is deployed of it."""

from penstock.application.config.document import ConfigErrors, Mistake, Place
from penstock.application.config.loading import Loaded, load, loads

__all__ = ["ConfigErrors", "Loaded", "Mistake", "Place", "load", "loads"]
