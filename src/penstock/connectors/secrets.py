"""`${file:PATH}` in a connector's options: the worker reads the file when it creates the connector, and stores nothing
of it. `$${` is a literal `${`.

No such value is in any text that Penstock prints, logs or raises: those show the reference as written.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.core.errors import RequestError

SECRET_BYTES_MAX = 1 << 20
"""A password, a token, a certificate with its chain: a larger file was named by mistake."""

REFERENCE = re.compile(r"\$(\$)?\{((?:[^{}]|\{[^{}]*\})*)\}")
"""With an instance's variables in it: `${file:/run/{instance}/password}`."""
FILE = "file:"
_HIDDEN = "…"


class Secret(str):
    """A text that `repr`, and so logs and errors of any object that contains it, do not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(_HIDDEN)


class NoSecret(RequestError):
    """A file that `${file:…}` names cannot be read."""


def files_in(text: str) -> list[Path]:
    """The files that it refers to."""
    return [Path(m[2].removeprefix(FILE)) for m in REFERENCE.finditer(text) if not m[1] and m[2].startswith(FILE)]


def has_files(config: Any) -> bool:
    """Whether `resolve` would read any."""
    if isinstance(config, str):
        return bool(files_in(config))
    inner = config.values() if isinstance(config, Mapping) else config if isinstance(config, list | tuple) else ()
    return any(map(has_files, inner))


def resolve(config: Any) -> Any:
    """The same value with `${file:…}` replaced by the files' contents, as Secret, without the newline at the end.
    Raises NoSecret. The worker does this when it creates the connector: nothing of it is stored.
    """
    if isinstance(config, str):
        return _resolved(config)
    if isinstance(config, Mapping):
        return {key: resolve(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [resolve(value) for value in config]
    return config


def _resolved(text: str) -> str:
    if f"{{{FILE}" not in text:
        return text
    resolved = REFERENCE.sub(_content, text)
    return Secret(resolved) if files_in(text) else resolved


def _content(match: re.Match[str]) -> str:
    if not match[2].startswith(FILE):
        return match[0]
    if match[1]:
        return match[0][1:]
    path = Path(match[2].removeprefix(FILE))
    try:
        return read_bounded(path, SECRET_BYTES_MAX).removesuffix("\n").removesuffix("\r")
    except TooLarge:
        raise NoSecret(f"{path} is too large for a secret", f"At most {SECRET_BYTES_MAX >> 20} MiB.") from None
    except OSError as error:
        raise NoSecret(f"{path} cannot be read: {error.strerror}", "It is named by ${file:…}.") from None
    except UnicodeDecodeError:
        raise NoSecret(f"{path} is not text", "It is named by ${file:…}, and must be UTF-8.") from None


# Files that people name: never read beyond a plausible size, and never waited for.


class TooLarge(Exception):
    """The file is longer than the limit."""


def read_bounded(path: Path, bytes_max: int) -> str:
    """The file's text, as UTF-8. A pipe or a device is refused before it is read: it may never end, or never begin.
    Raises OSError, TooLarge, UnicodeDecodeError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123  of a descriptor
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(None, "Is a directory")
        if not stat.S_ISREG(mode):
            raise OSError(None, "it is not a regular file")
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise TooLarge
    return data.decode()
