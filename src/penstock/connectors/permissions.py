"""What deployments may do on the worker's machine: which files connectors may use, whether they may run code or
programs, and whether servers may be reachable from the network.
"""

import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.core.address import is_loopback
from penstock.core.errors import RequestError

_INSTALLED = ("purelib", "platlib", "stdlib", "platstdlib", "scripts")


def _installed() -> Iterator[Path]:
    """Directories whose files the next start would run or import: Python's modules and commands, a virtual environment,
    and this package, which may be elsewhere.
    """
    yield from (Path(sysconfig.get_path(name)) for name in _INSTALLED)
    yield Path(__file__).parents[1]
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix)


class NotPermitted(RequestError):
    """The worker was not started with the required option."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Set when the worker starts. The default allows everything, for a worker that runs with its user's own rights."""

    callbacks: bool = True
    """Whether connectors of type `callback` may run Python files in the worker."""
    roots: tuple[Path, ...] = (Path("/"),)
    """Directories, absolute and without symbolic links, in which connectors may use files."""
    denied: tuple[Path, ...] = ()
    """Directories and files in them that no connector may use, such as the worker's data, which contain its token."""
    exposed: bool = True
    """Whether servers may listen beyond loopback without TLS, or without authentication."""
    own_store: str = ""
    """The URL of the object store with the worker's journal, which no connector may use; "" if there is none."""
    programs: bool = True
    """Whether connectors of type `exec` may run programs on the worker's machine."""

    @classmethod
    def of(
        cls,
        data: Path,
        roots: tuple[Path, ...],
        *,
        callbacks: bool,
        exposed: bool,
        own_files: tuple[Path | None, ...] = (),
        own_store: str = "",
        programs: bool = False,
    ) -> "Permissions":
        """The permissions of a worker on `data`; `own_files` are files that it uses elsewhere. Raises RequestError for
        a root that is not a directory.
        """
        for root in roots:
            if not root.is_dir():
                raise RequestError(f"--file-root {root} is not a directory", "Create it, or name another one.")
        installed = tuple(path.resolve() for path in _installed())
        own = [path.resolve() for path in (data, *own_files) if path is not None]
        denied = tuple(dict.fromkeys([*own, *installed]))
        return cls(callbacks, tuple(root.resolve() for root in roots), denied, exposed, own_store, programs)

    def allows(self, path: Path) -> bool:
        """Symbolic links are followed first; a relative path starts in the working directory."""
        found = path.resolve()
        return any(map(found.is_relative_to, self.roots)) and not any(map(found.is_relative_to, self.denied))

    def check_path(self, path: Path) -> None:
        """Raises NotPermitted."""
        if self.allows(path):
            return
        found = path.resolve()
        for denied in self.denied:
            if found.is_relative_to(denied):
                raise NotPermitted(f"{path}: connectors may not use {denied}", "Use another directory.")
        hint = "Start the worker with --file-root DIR for its directory."
        if not self.roots:
            raise NotPermitted(f"{path}: connectors of this worker may not use files", hint)
        roots = ", ".join(map(str, self.roots))
        raise NotPermitted(f"{path} is outside the directories that connectors may use: {roots}", hint)

    def check_store(self, url: str) -> None:
        """For a connector that writes to a prefix in a bucket. Raises NotPermitted."""
        own, given = (f"{each.rstrip('/')}/" for each in (self.own_store, url))
        if self.own_store and (own.startswith(given) or given.startswith(own)):
            raise NotPermitted(f"{url}: connectors may not use the worker's own store", "Use another prefix.")

    def check_callbacks(self) -> None:
        """Raises NotPermitted."""
        if not self.callbacks:
            raise NotPermitted(
                "callbacks are not allowed: they run Python code in the worker",
                "Start the worker with --allow-callbacks if everyone who may deploy may run code there.",
            )

    def check_programs(self) -> None:
        """Raises NotPermitted."""
        if not self.programs:
            raise NotPermitted(
                "programs are not allowed: they run on the worker's machine with all its rights",
                "Start the worker with --allow-exec if everyone who may deploy may run programs there.",
            )

    def check_server(self, host: str, *, has_tls: bool, has_auth: bool) -> None:
        """For a connector that listens on `host`. Raises NotPermitted."""
        if self.exposed or is_loopback(host) or (has_tls and has_auth):
            return
        missing = [*([] if has_tls else ["`tls`"]), *([] if has_auth else ["`auth`"])]
        raise NotPermitted(
            f"a server on host {host} is reachable from other machines and needs {' and '.join(missing)}",
            f"Add {' and '.join(missing)}, use host 127.0.0.1, or start the worker with --insecure if everyone on the "
            "network is trusted.",
        )


UNLIMITED = Permissions()
