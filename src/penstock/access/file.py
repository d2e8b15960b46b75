"""DATA/access.json and DATA/token: who has access to a worker. Only digests of tokens are stored, except for the
owner's own token, which commands on the same machine read.

Changes of the files take effect within a second, without a restart; a new token at once. A file that cannot be read
changes nothing: the last good one stays in effect.
"""

import fcntl
import logging
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.access.principals import ANONYMOUS, EVERYONE, GRANTED, Access, Grant, Principal, Role, digest
from penstock.core.durable_files import sync_directory, write_private
from penstock.core.errors import RequestError, Unauthenticated, UnreadableFormat

log = logging.getLogger(__name__)

OWNER = "owner"
FILE = "access.json"
TOKEN_FILE = "token"  # noqa: S105  the name of a file
FORMAT = 1
"""The format version of access.json."""
_TOKEN_BYTES = 32
_TOKEN_CHARS_MIN = 20
_CHECK_SECONDS = 1.0
_GRANTS_MAX = 10_000
_NOBODY = Access()
_NAME_CHARS_MAX = 100


class AccessControl(Protocol):
    """What a server asks for each request."""

    def principal(self, token: str, certificate_names: Collection[str] = ()) -> Principal:
        """Raises Unauthenticated."""
        ...


class Open:
    """No access control: everybody may do everything."""

    def principal(self, token: str, certificate_names: Collection[str] = ()) -> Principal:  # noqa: ARG002
        return EVERYONE


class WithConnectors:
    """Adds a token that the worker generates for its own connectors, and keeps only in memory. Whoever may bind or
    deploy them decides what they write, and with which quota.
    """

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)

    def principal(self, token: str, certificate_names: Collection[str] = ()) -> Principal:
        """Raises Unauthenticated."""
        if secrets.compare_digest(token.encode(), self.token.encode()):
            return _CONNECTORS
        return self._access.principal(token, certificate_names)


_CONNECTORS = Principal("connectors", Role.ADMIN)


class WithCluster:
    """Adds the secret of the cluster, with which its processes call each other."""

    def __init__(self, access: AccessControl, secret: str = "") -> None:
        self._access = access
        self.secret = secret
        """No client has it while it is empty."""

    def principal(self, token: str, certificate_names: Collection[str] = ()) -> Principal:
        """Raises Unauthenticated."""
        if self.secret and secrets.compare_digest(token.encode(), self.secret.encode()):
            return _CLUSTER
        return self._access.principal(token, certificate_names)


_CLUSTER = Principal("cluster", Role.SHARD)


class StoredGrant(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A grant as it is stored in the file."""

    name: str
    role: str
    prefixes: list[str] = []
    token_sha256: str | None = None
    certificate: str | None = None
    quota_bytes: int | None = None

    def grant(self) -> Grant:
        principal = Principal(self.name, _role(self.role), tuple(self.prefixes) or ("",), self.quota_bytes)
        return Grant(principal, self.token_sha256, self.certificate)


class _Versioned(msgspec.Struct):
    format: int | None = None


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    principals: list[StoredGrant]


class AccessFile:
    """The access of one worker. `add` and `revoke` may be called from another process than the worker's."""

    def __init__(self, data: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = data / FILE
        self._token_file = data / TOKEN_FILE
        self._clock = clock
        self._checked_at = float("-inf")
        self._seen: tuple[object, object] | None = None
        self._access = _NOBODY

    def principal(self, token: str, certificate_names: Collection[str] = ()) -> Principal:
        """Raises Unauthenticated."""
        self._reload_if_changed()
        try:
            return self._access.principal(token, certificate_names)
        except Unauthenticated:  # a token that was added just now is not in it yet
            self._checked_at = float("-inf")
            self._reload_if_changed()
            return self._access.principal(token, certificate_names)

    def create_owner_token(self) -> None:
        """Unless there is one. Whoever can read the data directory's files owns the worker."""
        if not self._token_file.exists():
            write_private(self._token_file, f"{secrets.token_urlsafe(_TOKEN_BYTES)}\n".encode())

    def rotate_owner_token(self) -> None:
        """The former one is refused from now on. Raises RequestError if a file was named for it (--token-file)."""
        if self._token_file.is_symlink():
            raise RequestError(
                f"the owner's token is in {self._token_file.readlink()}, which the worker was started with",
                "Write a new token to that file, in a cluster on every machine: it is effective within a second.",
            )
        write_private(self._token_file, f"{secrets.token_urlsafe(_TOKEN_BYTES)}\n".encode())

    def use_owner_token(self, file: Path) -> None:
        """The owner's token is the one in this file, from now on: DATA/token becomes a link to it, so that a change of
        the file takes effect, and commands on the same machine find it. Raises RequestError if there is none in it.
        """
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"the token file {file} cannot be read: {error}", _RANDOM_HINT) from None
        if len(token) < _TOKEN_CHARS_MIN:
            raise RequestError(f"the token in {file} has fewer than {_TOKEN_CHARS_MIN} characters", _RANDOM_HINT)
        if _is_link_to(self._token_file, file.absolute()):
            return  # a full disk has no room for a new file
        link = self._token_file.with_name(f".token.{os.getpid()}")
        link.unlink(missing_ok=True)
        link.symlink_to(file.absolute())
        link.replace(self._token_file)
        sync_directory(self._token_file.absolute().parent)

    def grants(self) -> list[StoredGrant]:
        """Raises RequestError for a file that is not one of ours; UnreadableFormat if another version wrote it."""
        try:
            data = self._file.read_bytes()
            found = msgspec.json.decode(data, type=_Versioned).format
            if found != FORMAT:
                raise UnreadableFormat(str(self._file), found, FORMAT, _HINT)
            stored = msgspec.json.decode(data, type=_Stored)
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as error:
            raise RequestError(f"{self._file} cannot be read: {error}", _HINT) from None
        for one in stored.principals:
            _role(one.role)
        return stored.principals

    def add(self, grant: StoredGrant) -> str:
        """Returns the new token, which is stored nowhere; "" where a certificate, or nothing, proves who it is."""
        _check_name(grant.name)
        _role(grant.role)
        if "" in grant.prefixes:
            raise RequestError("an empty prefix would mean every name", "Leave it out for a role on everything.")
        if grant.quota_bytes is not None and not grant.prefixes:
            raise RequestError("a quota without a prefix would count what all principals store", "Add --prefix.")
        token = ""
        if grant.certificate is None and grant.name != ANONYMOUS:
            token = secrets.token_urlsafe(_TOKEN_BYTES)
            grant.token_sha256 = digest(token)
        with self._locked():
            grants = self.grants()
            _check_new(grant, grants)
            self._write([*grants, grant])
        return token

    def revoke(self, name: str) -> None:
        """Raises RequestError if there is no such principal."""
        if name == OWNER:
            raise RequestError("the owner cannot be revoked", "Replace its token: penstock access rotate.")
        with self._locked():
            grants = self.grants()
            if all(one.name != name for one in grants):
                raise RequestError(f"principal {name!r} not found", "List them: penstock access list")
            self._write([one for one in grants if one.name != name])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """No other process changes the file meanwhile."""
        descriptor = os.open(self._file.with_name("access.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, grants: list[StoredGrant]) -> None:
        write_private(self._file, _encoded(grants))

    def _reload_if_changed(self) -> None:
        now = self._clock()
        if now - self._checked_at < _CHECK_SECONDS:
            return
        self._checked_at = now
        seen = (_state(self._file), _state(self._token_file))
        if seen == self._seen:
            return
        self._seen = seen
        try:
            owners = self._owners()
            if self._access is _NOBODY:  # the owner has access even if the other grants cannot be read
                self._access = Access.of(owners)
            self._access = Access.of([*owners, *(one.grant() for one in self.grants())])
        except (RequestError, UnreadableFormat, OSError, UnicodeDecodeError) as error:
            log.error("access stays as it was: %s", error)

    def _owners(self) -> list[Grant]:
        """One, unless there is no token. Raises OSError, UnicodeDecodeError."""
        token = self._token_file.read_text().strip() if self._token_file.exists() else ""
        return [Grant(Principal(OWNER, Role.ADMIN), digest(token))] if token else []


def merged(base: bytes | None, mine: bytes, theirs: bytes) -> bytes:
    """The content of a file that was changed at two places since it was `base`: both changes, and of a principal that
    both have changed, mine. If one of them cannot be read, mine.
    """
    try:
        old, own, others = (_by_name(content) for content in (base, mine, theirs))
    except msgspec.MsgspecError:
        return mine
    kept = {name: grant for name, grant in others.items() if name in own or name not in old}
    changed = {name: grant for name, grant in own.items() if old.get(name) != grant}
    return _encoded([*(kept | changed).values()])


def _by_name(content: bytes | None) -> dict[str, StoredGrant]:
    grants = [] if content is None else msgspec.json.decode(content, type=_Stored).principals
    return {one.name: one for one in grants}


def _encoded(grants: list[StoredGrant]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(_Stored(FORMAT, grants))) + b"\n"


_RANDOM_HINT = "It must contain only a long random text, such as the output of: openssl rand -hex 32"
_HINT = "Restore it from a backup, or delete it and add the principals again: penstock access add"


def create_private_directory(directory: Path) -> None:
    """Accessible only to its owner, even if it existed before: the owner's token and all data are in it. Somebody
    else's directory, such as a mounted volume, stays as it is.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_mode & 0o077:
        try:
            directory.chmod(0o700)
        except PermissionError:
            log.warning("%s belongs to another user: others may be able to read what it contains", directory)


def _check_name(name: str) -> None:
    if not name or not name.isprintable() or len(name) > _NAME_CHARS_MAX:
        raise RequestError(
            f"{name!r:.200} is not a valid principal name", f"Use 1 to {_NAME_CHARS_MAX} printable characters."
        )


def _check_new(grant: StoredGrant, grants: list[StoredGrant]) -> None:
    if grant.name == OWNER or any(one.name == grant.name for one in grants):
        raise RequestError(f"there is a principal {grant.name!r} already", "Revoke it first, or use another name.")
    if grant.certificate is not None and any(one.certificate == grant.certificate for one in grants):
        raise RequestError(f"another principal has the certificate {grant.certificate!r}", "Revoke that one first.")
    if len(grants) >= _GRANTS_MAX:
        raise RequestError(f"there are {_GRANTS_MAX} principals already", "Revoke some that are not needed.")


def _role(name: str) -> Role:
    try:
        return {role.value: role for role in GRANTED}[name]
    except KeyError:
        roles = ", ".join(role.value for role in GRANTED)
        raise RequestError(f"{name!r} is not a valid role", f"The roles are {roles}.") from None


def _is_link_to(link: Path, target: Path) -> bool:
    try:
        return link.readlink() == target
    except OSError:
        return False


def _state(file: Path) -> object:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
