"""What a client proves its identity with: the token in the file that PENSTOCK_TOKEN_FILE names.

Never an option or an argument: those show in Spark's plans and UI, and in lists of processes.
"""

import os
from pathlib import Path

from penstock.core.errors import RequestError

TOKEN_FILE = "PENSTOCK_TOKEN_FILE"  # noqa: S105  the variable's name


def read_token() -> str:
    """Empty where the variable is not set. Read each time: a token may be replaced while a program runs."""
    name = os.environ.get(TOKEN_FILE)
    if not name:
        return ""
    try:
        return Path(name).read_text().strip()
    except OSError as error:
        raise RequestError(
            f"the token file {name} cannot be read: {error.strerror}",
            f"{TOKEN_FILE} names a file that contains the token alone.",
        ) from None
