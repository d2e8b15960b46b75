"""The command line: one file per command."""

import sys


def main() -> None:
    """Ctrl-C ends every command quietly, also while its modules are still being imported."""
    try:
        from penstock.cli.app import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(130)


__all__ = ["main"]
