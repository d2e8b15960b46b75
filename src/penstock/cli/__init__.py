"""The command line: one file per verb."""

from penstock.cli.app import main

__all__ = ["main"]
