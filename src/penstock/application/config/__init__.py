"""Applications in YAML: the file, all mistakes in it at once, and the deployment that it describes."""

from penstock.application.config.document import ConfigErrors
from penstock.application.config.loading import Loaded, load, loads

__all__ = ["ConfigErrors", "Loaded", "load", "loads"]
