"""What is not in the file itself: `${NAME}` and `${NAME:-default}` of the environment, taken where the file is read;
`${file:PATH}`, which stays as it is until the worker makes the connector. `$${` is a plain `${`.

No value from either is in any text that Penstock prints, logs or raises: those show what was written.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.config.document import TooLarge, Unset, nearest, read_bounded
from penstock.core.errors import RequestError

SECRET_BYTES_MAX = 1 << 20
"""A password, a token, a certificate with its chain: more is another file, given by mistake."""

_REFERENCE = re.compile(r"\$(\$)?\{((?:[^{}]|\{[^{}]*\})*)\}")
"""With an instance's variables in it: `${file:/run/{instance}/password}`."""
_FILE = "file:"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HIDDEN = "…"
_EXPECTED = "Write ${NAME}, ${NAME:-default} or ${file:PATH}; $${ for a plain ${."


class Secret(str):
    """A text that `repr`, and so logs and errors of what holds it, do not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(_HIDDEN)


class NoSecret(RequestError):
    """A file that `${file:…}` names cannot be read."""


def from_environment(text: str, environ: Mapping[str, str], folder: Path) -> str | Unset:
    """The text with what the environment has; `${file:…}` stays, with the whole path, begun in `folder`."""
    unset: list[Unset] = []

    def put(match: re.Match[str]) -> str:
        if match[1]:
            return match[0] if match[2].startswith(_FILE) else match[0][1:]
        found = _reference(match[2], environ, folder)
        if isinstance(found, Unset):
            unset.append(found)
            return ""
        return found

    made = _REFERENCE.sub(put, text)
    if "${" in _REFERENCE.sub("", text):
        unset.append(Unset(f'"{text}" has a "${{" that begins no variable', _EXPECTED))
    return unset[0] if unset else made


def _reference(inside: str, environ: Mapping[str, str], folder: Path) -> str | Unset:
    if inside.startswith(_FILE):
        return _file_reference(inside.removeprefix(_FILE).strip(), folder)
    name, has_default, default = inside.partition(":-")
    if not _NAME.fullmatch(name):
        return Unset(f'"${{{inside}}}" is no variable', _EXPECTED)
    if "${" in default:
        return Unset(f'"${{{inside}}}" has a variable in its default', "A default is a plain text.")
    if environ.get(name) or (name in environ and not has_default):
        return environ[name]
    if has_default:
        return default
    return Unset(
        f'"${{{name}}}" is not set in the environment', f"Set it, or write ${{{name}:-default}}. {_near(name, environ)}"
    )


def _near(name: str, environ: Mapping[str, str]) -> str:
    hint = nearest(name, environ)
    return hint if hint.startswith("Did") else ""


def _file_reference(path: str, folder: Path) -> str | Unset:
    if not path:
        return Unset('"${file:}" names no file', "Write ${file:PATH}.")
    return f"${{{_FILE}{(folder / Path(path).expanduser()).absolute()}}}"


def files_in(text: str) -> list[Path]:
    """Those that it refers to."""
    return [Path(m[2].removeprefix(_FILE)) for m in _REFERENCE.finditer(text) if not m[1] and m[2].startswith(_FILE)]


def has_files(config: Any) -> bool:
    """Whether `resolve` would read any."""
    if isinstance(config, str):
        return bool(files_in(config))
    inner = config.values() if isinstance(config, Mapping) else config if isinstance(config, list | tuple) else ()
    return any(map(has_files, inner))


def resolve(config: Any) -> Any:
    """The same with what the files hold in the place of `${file:…}`, as Secret, without the newline at the end. Raises
    NoSecret. The worker does it when it makes the connector: nothing of it is stored.
    """
    if isinstance(config, str):
        return _resolved(config)
    if isinstance(config, Mapping):
        return {key: resolve(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [resolve(value) for value in config]
    return config


def _resolved(text: str) -> str:
    if f"{{{_FILE}" not in text:
        return text
    made = _REFERENCE.sub(_content, text)
    return Secret(made) if files_in(text) else made


def _content(match: re.Match[str]) -> str:
    if not match[2].startswith(_FILE):
        return match[0]
    if match[1]:
        return match[0][1:]
    path = Path(match[2].removeprefix(_FILE))
    try:
        return read_bounded(path, SECRET_BYTES_MAX).removesuffix("\n").removesuffix("\r")
    except TooLarge:
        raise NoSecret(f"{path} is too large for a secret", f"At most {SECRET_BYTES_MAX >> 20} MiB.") from None
    except OSError as error:
        raise NoSecret(f"{path} cannot be read: {error.strerror}", "It is named by ${file:…}.") from None
    except UnicodeDecodeError:
        raise NoSecret(f"{path} is no text", "It is named by ${file:…}, and must be UTF-8.") from None
