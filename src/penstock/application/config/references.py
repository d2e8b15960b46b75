"""References to values outside an application's file: `${NAME}`, `${NAME:-default}` and `${file:PATH}`.

In options of connectors and interceptors, and in the variables of instances, they stay references: the worker resolves
them when it creates a connector. Options of codecs are resolved when the file is read, files included. Everywhere else
variables are replaced by their values when the file is read, because the deployment needs the value: a codec, a quota,
a function.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from penstock.connectors.secrets import FILE, REFERENCE, NoSecret, UnsetVariable, resolve, variable
from penstock.core.suggestions import suggestion

KeyPath: TypeAlias = tuple[str | int, ...]

_EXPECTED = "Write ${NAME}, ${NAME:-default} or ${file:PATH}; $${ for a plain ${."


@dataclass(frozen=True, slots=True)
class Unset:
    """Why the text has no value."""

    text: str
    hint: str
    variable: str = ""
    """The environment variable that is not set here, if that is all that is wrong."""


class UnreadFile(NoSecret):
    """The value is in a file, and files are not read here."""


def are_kept(path: KeyPath) -> bool:
    """Whether references at this place of the file stay as they are."""
    keys = [key for key in path if isinstance(key, str)]
    match keys:
        case ["connector", "config" | "codec_config", *_] | ["connector", "interceptors", _, "config", *_]:
            return True
        case ["binding", "instances", *_]:
            return True
    return False


@dataclass(frozen=True, slots=True)
class References:
    """With the environment of this command, and relative to the directory of the file."""

    environ: Mapping[str, str]
    folder: Path
    reads_files: bool = True
    """False where the file comes from somebody who must not learn what is in the files of this machine."""

    def check(self, text: str) -> Unset | None:
        """What is wrong with the first reference in the text that has no value here. Files are not looked at."""
        for match in REFERENCE.finditer(text):
            if not match[1] and (found := self._check(match[2])) is not None:
                return found
        if "${" in REFERENCE.sub("", text):
            return Unset(f'"{text}" has a "${{" that does not start a variable', _EXPECTED)
        return None

    def _check(self, inside: str) -> Unset | None:
        if inside.startswith(FILE):
            is_named = inside.removeprefix(FILE).strip()
            return None if is_named else Unset('"${file:}" names no file', "Write ${file:PATH}.")
        try:
            variable(inside, self.environ)
        except UnsetVariable as error:
            hint = f"Set it, or write ${{{error.name}:-default}}. {self._near(error.name)}"
            return Unset(f'"${{{error.name}}}" is not set in the environment', hint, error.name)
        except NoSecret as error:
            return Unset(str(error), error.hint)
        return None

    def _near(self, name: str) -> str:
        hint = suggestion(name, self.environ)
        return hint if hint.startswith("Did") else ""

    def kept(self, text: str) -> str:
        """As written, with the paths of files made absolute."""
        return REFERENCE.sub(lambda match: match[0] if match[1] else self._absolute(match), text)

    def _absolute(self, match: re.Match[str]) -> str:
        if not match[2].startswith(FILE):
            return match[0]
        path = Path(match[2].removeprefix(FILE).strip()).expanduser()
        return f"${{{FILE}{(self.folder / path).absolute()}}}"

    def replaced(self, value: Any) -> Any:
        """With the values of variables; what is not set, and references to files, stay."""
        if isinstance(value, Mapping):
            return {key: self.replaced(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.replaced(each) for each in value]
        if not isinstance(value, str) or "${" not in value or self.check(value) is not None:
            return value
        return REFERENCE.sub(self._value, self.kept(value))

    def _value(self, match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        return match[0] if match[2].startswith(FILE) else variable(match[2], self.environ)

    def resolve(self, text: str) -> str:
        """As the worker would, with the environment of this command. Raises NoSecret; UnreadFile if no file is read."""
        if not self.reads_files:
            for match in REFERENCE.finditer(text):
                if not match[1] and match[2].startswith(FILE):
                    raise UnreadFile(f"{match[0]} names a file, and none is read here", "Use penstock apply.")
        found: str = resolve(text, self.environ)
        return found
