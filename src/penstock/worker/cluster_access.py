"""The access list of a cluster: `cluster/access` in the bucket, and access.json in the data directory of each host, so
that a token is valid in every shard; and the owner's token, which is in `cluster/secret` and in DATA/token.

The bucket decides. A command (`penstock access`) changes the file of one machine; that machine's host writes it to the
bucket, and the others fetch it within ten seconds. If the host is stopped, the command does what the host would do.
DATA/token.shared has the digest of the owner's token that both had last: so a token that was replaced while the store
was away is not lost when the host is started again.
"""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from penstock.access.file import FILE, TOKEN_FILE, merged
from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists, VersionChanged
from penstock.cluster.secret import cluster_secret, replace_owner
from penstock.core.durable_files import write_private
from penstock.core.errors import Unavailable

ACCESS = "cluster/access"

SHARED_FILE = "token.shared"

LOOK_SECONDS = 10.0
"""Between two looks whether another machine has changed the list."""

_TRIES = 3
"""To write the list, while other machines do."""


class ClusterAccess:
    """Each call may make requests, and raises what the store raises. Not for several threads at once."""

    def __init__(self, bucket: Bucket, data: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._file = data / FILE
        self._token = data / TOKEN_FILE
        """Unless a file was named for the owner's token (--token-file): then it is a link, and is left alone."""
        self._shared = data / SHARED_FILE
        self._owner = self._shared.read_text() if self._shared.exists() else ""
        """The digest of the owner's token that this machine and the bucket had last; "": not known."""
        self._clock = clock
        self._seen: bytes | None = None
        self._version = ""
        self._looked = float("-inf")

    def begin(self, first: bytes | None = None) -> None:
        """The bucket's list, or the machine's own if the cluster is new, or else the `first` one."""
        self._looked = self._clock()
        self._look_at_owner()
        if not self._fetch():
            mine = self._read()
            content = first if mine is None else mine
            if content is not None:
                self._put(content)

    def look_if_due(self) -> None:
        if self.has_changed_here() or self._clock() - self._looked >= LOOK_SECONDS:
            self.look()

    def has_changed_here(self) -> bool:
        """Without a request."""
        mine = self._read()
        return (mine is not None and mine != self._seen) or self._new_owner() != ""

    def look(self) -> None:
        """Whichever has changed since the last time is written to the other; the machine's own comes first."""
        self._looked = self._clock()
        mine = self._read()
        if mine is not None and mine != self._seen:
            self._put(mine)
        else:
            self._fetch()
        self._look_at_owner()

    def _look_at_owner(self) -> None:
        if token := self._new_owner():
            replace_owner(self._bucket, token)
        else:
            token = cluster_secret(self._bucket).owner
            content = f"{token}\n".encode()
            if not self._token.is_symlink() and (not self._token.exists() or self._token.read_bytes() != content):
                write_private(self._token, content)
        if self._owner != (digest := _digest(token)):
            write_private(self._shared, digest.encode())
            self._owner = digest

    def _new_owner(self) -> str:
        """The token of this machine, if it was replaced since the last time; otherwise ""."""
        if not self._owner or self._token.is_symlink() or not self._token.exists():
            return ""
        token = self._token.read_text().strip()
        return token if token and _digest(token) != self._owner else ""

    def _fetch(self) -> bool:
        """Whether the bucket has a list."""
        try:
            found = self._bucket.get(ACCESS)
        except NoSuchObject:
            return False
        self._version = found.version
        if found.data != self._seen or self._read() != found.data:
            self._seen = found.data
            write_private(self._file, found.data)
        return True

    def _put(self, content: bytes) -> None:
        """If another machine has changed it meanwhile, both changes count: otherwise an old list would give a revoked
        principal its access back. Raises Unavailable if that happens again and again.
        """
        for _ in range(_TRIES):
            try:
                if self._version:
                    self._version = self._bucket.replace(ACCESS, content, self._version)
                else:
                    self._version = self._bucket.create(ACCESS, [content])
                break
            except (ObjectExists, VersionChanged):
                theirs = self._bucket.get(ACCESS)
                content = merged(self._seen, content, theirs.data)
                self._seen, self._version = theirs.data, theirs.version
        else:
            raise Unavailable("other machines change the access list at the same time", "Try again.")
        self._seen = content
        if self._read() != content:
            write_private(self._file, content)

    def _read(self) -> bytes | None:
        try:
            return self._file.read_bytes()
        except FileNotFoundError:
            return None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
