"""The token that all tests share: of the owner of each worker that they start, and of all their clients."""

import os
from pathlib import Path

TOKEN_FILE = Path(__file__).with_name("token")
TOKEN = TOKEN_FILE.read_text().strip()


def set_token_variables() -> None:
    """For this process, and for all that it starts."""
    os.environ["PENSTOCK_TOKEN_FILE"] = os.environ["PENSTOCK_WORKER_TOKEN_FILE"] = str(TOKEN_FILE)
