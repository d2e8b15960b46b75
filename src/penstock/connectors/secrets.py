"""References in a connector's options: `${NAME}` and `${NAME:-default}` to an environment variable, `${file:PATH}` to a
file. A deployment contains the references. The worker resolves them when it creates the connector, from its own
environment and files, and never stores the values. `$${` is a literal `${`.

Texts that Penstock prints, logs or raises never contain such a value: they show the reference as written.
"""

import json
import logging
import os
import re
import stat
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from penstock.connectors.permissions import UNLIMITED, Permissions
from penstock.core.errors import PenstockError, RequestError
from penstock.core.logs import any_of, hide_in_logs
from penstock.core.sizes import format_size

log = logging.getLogger(__name__)

SECRET_BYTES_MAX = 1 << 20
"""Enough for a password, a token, or a certificate with its chain: a larger file was named by mistake."""

REFERENCE = re.compile(r"\$(\$)?\{((?:[^{}]|\{[^{}]*\})*)\}")
"""May contain an instance's variables: `${file:/run/{instance}/password}`."""
FILE = "file:"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_PREFIX = "PENSTOCK_"
"""Variables of Penstock itself, such as the cookie: deployments may not use them."""
_EXPECTED = "Write ${NAME}, ${NAME:-default} or ${file:PATH}; $${ for a plain ${."
_HIDDEN = "…"

MASKED_CHARS_MIN = 4
"""A shorter value is not a secret, and replacing it would garble texts."""

MASKED_LINES_MAX = 200
"""Lines of a value that are masked separately, such as those of a certificate: each costs time for every text."""


class Secret(str):
    """A text that `repr` does not show, and so neither do logs and errors of objects that contain it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(_HIDDEN)


class PlainOnly(ValueError):
    """For validators: the option cannot have a reference. The error's text contains no value, and is shown."""


class Mask:
    """The secret values of one connector, and the references that replace them in texts."""

    def __init__(self) -> None:
        self._references: dict[str, str] = {}
        """Reference by each visible form of its value, in lower case, because host names are shown in lower case."""
        self._pattern: re.Pattern[str] | None = None
        self.hidden_in_logs: dict[str, str] = {}
        """The same without parts of URLs that other log lines may contain too, such as host names."""

    def add(self, value: str, reference: str) -> None:
        if _is_address(value):
            return
        for form in _forms(value):
            self._hide(form, reference, self.hidden_in_logs)
        for part in _parts(value):
            self._hide(part, reference, self._references)
        self._references |= self.hidden_in_logs
        self._pattern = any_of(self._references)
        hide_in_logs(self)

    @staticmethod
    def _hide(form: str, reference: str, references: dict[str, str]) -> None:
        if len(form) >= MASKED_CHARS_MIN:
            references.setdefault(form.lower(), reference)

    def text(self, text: str) -> str:
        """The text, with values replaced by their references."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._references.get(found[0].lower(), _HIDDEN), text)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Put it around a call of the connector, to remove values from the text of errors. An error of another package
        that contains a value becomes one of Penstock's.
        """
        try:
            yield
        except PenstockError as error:
            error.args = (self.text(str(error)), *error.args[1:])
            error.hint = self.text(error.hint)
            raise
        except Exception as error:
            whole = "".join(traceback.format_exception(error))
            shown = self.text(whole)
            if shown == whole:
                raise
            if not isinstance(error, OSError):
                log.error("a connector failed: %s", shown)
            raise PenstockError(self.text(str(error)) or type(error).__name__) from None


def _is_address(value: str) -> bool:
    """Whether it is a number, such as a port, or an IP address: these are not secret, and people need them to reach a
    server.
    """
    if value.isdecimal():
        return True
    try:
        ip_address(value)
    except ValueError:
        return False
    return True


def _forms(value: str) -> Iterator[str]:
    """The forms in which errors may show the value: unchanged, line by line, quoted, escaped; for a URL also its secret
    parts.
    """
    yield from (value, value.strip(), quote(value), quote(value, safe=""), repr(value)[1:-1], json.dumps(value)[1:-1])
    yield from map(str.strip, value.splitlines()[:MASKED_LINES_MAX])
    if (url := _url(value)) is not None:
        yield from (url.password or "", url.query)


def _parts(value: str) -> Iterator[str]:
    """The parts of a URL that a connector's own texts do not show either."""
    if (url := _url(value)) is not None:
        yield from (url.netloc, url.hostname or "", url.path, url.username or "")


def _url(value: str) -> SplitResult | None:
    try:
        return urlsplit(value) if "://" in value else None
    except ValueError:
        return None


class NoSecret(RequestError):
    """A reference cannot be resolved here."""


class UnsetVariable(NoSecret):
    """An environment variable is not set in this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f'"${{{name}}}" is not set in the environment of the worker',
            f"Set {name} where the worker is started, or write ${{{name}:-default}}.",
        )


def has_references(config: Any) -> bool:
    """Whether `resolve` would change anything but escapes."""
    if isinstance(config, str):
        return any(not match[1] for match in REFERENCE.finditer(config))
    inner = config.values() if isinstance(config, Mapping) else config if isinstance(config, list | tuple) else ()
    return any(map(has_references, inner))


def resolve(
    config: Any,
    environ: Mapping[str, str] | None = None,
    permissions: Permissions = UNLIMITED,
    mask: Mask | None = None,
) -> Any:
    """The same value with references replaced by what they refer to, as Secret; files without the newline at the end.
    `environ` is this process's own unless another is passed; `mask` gets the values. Raises
    NoSecret, and RequestError for a file that `permissions` do not allow.
    """
    known = os.environ if environ is None else environ
    if isinstance(config, str):
        return _resolved(config, known, permissions, mask or Mask())
    if isinstance(config, Mapping):
        return {key: resolve(value, known, permissions, mask) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [resolve(value, known, permissions, mask) for value in config]
    return config


def _resolved(text: str, environ: Mapping[str, str], permissions: Permissions, mask: Mask) -> str:
    if "${" not in text:
        return text

    def put(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        if match[2].startswith(FILE):
            value = _content(Path(match[2].removeprefix(FILE)), permissions)
        else:
            value = variable(match[2], environ)
        if value != match[2].partition(":-")[2]:  # a default is not secret: it is part of the reference
            mask.add(value, match[0])
        return value

    resolved = REFERENCE.sub(put, text)
    return Secret(resolved) if has_references(text) else resolved


def variable(inside: str, environ: Mapping[str, str]) -> str:
    """The value for the text between the braces: `NAME`, or `NAME:-default`. Raises NoSecret."""
    name, has_default, default = inside.partition(":-")
    if not NAME.fullmatch(name):
        raise NoSecret(f'"${{{inside}}}" is not a valid variable', _EXPECTED)
    if "${" in default:
        raise NoSecret(f'"${{{inside}}}" has a variable in its default', "A default is a plain text.")
    if name.startswith(_OWN_PREFIX):
        raise NoSecret(f'"${{{name}}}" is reserved for Penstock', "Choose a name without PENSTOCK_.")
    if environ.get(name) or (name in environ and not has_default):
        return environ[name]
    if has_default:
        return default
    raise UnsetVariable(name)


def _content(path: Path, permissions: Permissions) -> str:
    permissions.check_path(path)
    try:
        return read_bounded(path, SECRET_BYTES_MAX).removesuffix("\n").removesuffix("\r")
    except TooLarge:
        raise NoSecret(f"{path} is too large for a secret", f"At most {format_size(SECRET_BYTES_MAX)}.") from None
    except OSError as error:
        raise NoSecret(f"{path} cannot be read: {error.strerror}", "It is named by ${file:…}.") from None
    except UnicodeDecodeError:
        raise NoSecret(f"{path} is not text", "It is named by ${file:…}, and must be UTF-8.") from None


# Reads files that users name: never more than a plausible size, and never blocking.


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
