"""Where a pipeline's checkpoint is, and whether there is anything in it."""

import re
from pathlib import Path

DEFAULT_FOLDER = "penstock-checkpoints"


def checkpoint_of(folder: str, pipeline: str) -> str:
    """`folder` may be a URL that Spark's file systems know; a local one becomes absolute."""
    local = local_path(folder)
    return f"{folder.rstrip('/')}/{pipeline}" if local is None else str(local.absolute() / pipeline)


def is_fresh(checkpoint: str) -> bool | None:
    """True: Spark has planned no batch there. None for what is not on this machine: we do not know."""
    local = local_path(checkpoint)
    if local is None:
        return None
    offsets = local / "offsets"
    return not offsets.is_dir() or not any(file.name.isdigit() for file in offsets.iterdir())


def local_path(text: str) -> Path | None:
    scheme = re.match(r"([a-z][a-z0-9+.-]*):", text)
    if scheme is None:
        return Path(text)
    return Path(re.sub(r"^file:(//)?", "", text)) if scheme[1] == "file" else None
