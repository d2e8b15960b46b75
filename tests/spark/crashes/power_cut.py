"""What a power cut may take from Spark's checkpoint: files that were written after the last sync before a merge.

The sync before the merge of batch B covers its offsets and its state. Its entry in the commit log, and all of the
batches behind it, may be gone.
"""

import re
import shutil
from pathlib import Path

_NUMBER = re.compile(r"\.?(\d+)(\.\w+)?(\.crc)?$")


def cut_power(checkpoint: Path, merged: int) -> list[str]:
    """Remove what is not covered by the sync before the merge of batch `merged`. Returns the names."""
    removed = _remove_above(checkpoint / "commits", merged - 1) + _remove_above(checkpoint / "offsets", merged)
    state = checkpoint / "state"
    for partition in state.glob("*/*") if state.is_dir() else ():
        removed += _remove_above(partition, merged + 1)
    return removed


def _remove_above(directory: Path, last: int) -> list[str]:
    found = [file for file in directory.iterdir() if (match := _NUMBER.match(file.name)) and int(match[1]) > last]
    for file in found:
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    return [f"{directory.name}/{file.name}" for file in found]
