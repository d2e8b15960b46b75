"""A worker as a member of the cluster of a bucket, and a shard as a worker owns it: the lease, the journal's files, and
the few files beside the journal.
"""

import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Timer
from typing import TypeVar

from penstock.access.file import FILE as ACCESS_FILE
from penstock.application.deployments import FILE as APPLICATION_FILE
from penstock.bucket.counted_bucket import CountedBucket, per_month
from penstock.bucket.probe import probe
from penstock.bucket.stores import open_bucket
from penstock.cluster.lease import REQUEST_SECONDS_MAX, UNREACHABLE_SECONDS_MAX, Lease, ShardCandidate, acquire
from penstock.cluster.lease_state import LeaseState, OwnerSeen
from penstock.cluster.records import worker_id
from penstock.cluster.secret import Secret, cluster_secret
from penstock.core.durable_files import write_private
from penstock.core.errors import BucketUnavailable, PenstockError, RequestError, TakenOver
from penstock.core.retry import Pauses, RetryPolicy
from penstock.protocol.api.status import BucketStatus
from penstock.store.bucket_files import BucketFiles
from penstock.store.bucket_log import reading_threads
from penstock.store.files import RealFiles
from penstock.store.settings import BucketSettings
from penstock.worker.cluster import Cluster
from penstock.worker.cluster_access import ClusterAccess
from penstock.worker.directory import Directory
from penstock.worker.settings import STORE_FILE, BucketOptions

log = logging.getLogger(__name__)

T = TypeVar("T")

PLAIN_FILES = (APPLICATION_FILE,)
"""Files of the data directory that belong to the shard. The owner's token does not: it stands for the right to read
this machine's files. The access list belongs to the cluster.
"""

_STOP_SECONDS_MAX = 10.0
"""How long a worker that stops waits for a bucket that does not answer. What it gives up was not acknowledged."""
_PROBES = RetryPolicy(first_seconds=0.5, max_seconds=5.0)
_LOOK_SECONDS = 0.1


class BucketMember:
    """One run of a worker on a bucket: a standby until it has acquired the shard, and again when that has moved away.
    It has a record in the bucket while it waits for the shard or owns it.
    """

    def __init__(
        self,
        options: BucketOptions,
        data: Path,
        addresses: Mapping[str, str] | None = None,
        *,
        is_tls: bool = False,
        on_secret: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`addresses`: where it listens. Raises RequestError for a data directory that has a journal of its own."""
        check_no_journal(data)
        self.options = options
        self.data = data
        self.worker = worker_id(f"{socket.gethostname()}.{options.shard}" if options.host else socket.gethostname())
        self.addresses = dict(addresses or {})
        self._on_secret = on_secret
        self.is_drained = False
        """From the next `acquire` on, it takes over only if no other worker does."""
        self.bucket = CountedBucket(open_bucket(options.url))
        self.leases = CountedBucket(open_bucket(options.url, timeout=REQUEST_SECONDS_MAX))
        self.access = None if options.host else ClusterAccess(self.leases, data)
        """None: the host takes care of the list."""
        self.cluster = Cluster(self.leases, self.worker, options.shard)
        self.directory = Directory(self.leases, options.shard, is_tls=is_tls)
        self._is_probed = False
        self._stop = Event()
        self._directory = RealFiles(data)
        self._directory.lock()  # before the lease: a second worker on one directory must not end the first one

    def acquire(
        self,
        on_waiting: Callable[[OwnerSeen], None] = lambda _: None,
        on_acquired: Callable[[], object] = lambda: None,
    ) -> "BucketShard | None":
        """Waits for the lease. None if it was stopped. Raises what the store raises."""
        if not self._is_probed:
            secret = patiently(self._first_requests, on_waiting, self._stop)
            if secret is None or self._stop.is_set():
                return None
            self.directory.secret = secret.token
            self._on_secret(secret.token)
            self._is_probed = True
        shard = BucketShard(self)
        candidate = ShardCandidate(
            self.leases,
            self.worker,
            self.addresses,
            self.options.shard,
            is_drained=self.is_drained,
            host=self.options.host,
        )
        force = self.options.take_over and not self.is_drained
        lease = acquire(candidate, force=force, stop=self._stop, on_waiting=on_waiting, on_change=shard.lease_changed)
        if lease is None:
            return None
        on_acquired()
        shard.open(lease)
        return shard

    def _first_requests(self) -> Secret:
        probe(self.bucket)
        secret = cluster_secret(self.bucket)
        if self.access is not None:
            self.access.begin()
        return secret

    def stop(self) -> None:
        """Wait for the lease no longer."""
        self._stop.set()

    def close(self) -> None:
        self._directory.close()


class BucketShard:
    """From the take-over until `close`. If another worker takes over, `on_lost` is called with an error that names it;
    while the lease cannot be renewed, others may, and `on_late` is called.
    """

    def __init__(self, member: BucketMember) -> None:
        self._data = member.data
        self._options = member.options
        self.member = member
        self.number = member.options.shard
        self.bucket = member.bucket
        self.on_late: Callable[[], object] = lambda: None
        self.on_lost: Callable[[PenstockError], object] = lambda _: None
        self._writing = Lock()
        self._seen: dict[str, bytes] = {}
        self._readers = reading_threads()

    def open(self, lease: Lease) -> None:
        """Raises what the store raises, and TakenOver; then the lease is released."""
        self._lease = lease
        try:
            self._wait_until_held()
            self.files = BucketFiles(
                self.bucket,
                RealFiles(self._options.cache),
                shard=self.number,
                owner=f"worker {lease.worker}",
                settings=BucketSettings(cache_bytes=self._options.cache_bytes),
                executor=self._readers,
            )
            self.files.on_failure = self._lost
            lease.check()  # another worker may have taken over while the log was read
            self._restore()
            write_private(self._data / STORE_FILE, f"{self.bucket.url}\n".encode())
        except BaseException:
            self._lease.release()
            raise

    # Moving to another worker.

    def make_ready(self, worker: str) -> dict[str, str] | None:
        """Ask this standby to wait for the shard: where it listens, or None if it does not answer."""
        found, revision = None, self.member.cluster.revision(worker)
        self._lease.announce_move(worker)
        try:
            found = self.member.cluster.wait_until_ready(worker, revision)
        finally:
            if found is None:
                self._lease.announce_move("")
        return None if found is None else found.addresses

    def _wait_until_held(self) -> None:
        """A process that slept since the lease was acquired must not fence the worker that has it now."""
        deadline = time.monotonic() + UNREACHABLE_SECONDS_MAX
        while self._lease.state is LeaseState.LATE and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        self._lease.check()

    def serve(self, addresses: dict[str, str]) -> None:
        """The worker listens there: others may know. The background work starts."""
        self._lease.set_addresses(addresses)
        self._report_loss(self._lease)  # no listener has heard of one before `on_lost` was set
        self.files.start()

    def may_act(self) -> bool:
        """Whether no other worker can have taken over, by the clock. Otherwise non-voting sinks get nothing."""
        return self._lease.state is LeaseState.HELD

    def lease_changed(self, lease: Lease) -> None:
        match lease.state:
            case LeaseState.LATE:
                log.warning("the lease cannot be renewed: another worker may take over, so sources are disconnected")
                self.on_late()
            case LeaseState.HELD:
                log.warning("the lease is renewed again")
            case LeaseState.TAKEN:
                self._report_loss(lease)

    def _report_loss(self, lease: Lease) -> None:
        try:
            lease.check()
        except TakenOver as error:
            self.on_lost(error)

    def _lost(self, error: PenstockError) -> None:
        self.on_lost(error)

    def stop_waiting_soon(self) -> None:
        """A sync that waits for the bucket ends after a while, with an error."""
        timer = Timer(_STOP_SECONDS_MAX, self.files.stop_waiting)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """After the journal is closed. Lets another worker take over at once."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._lease.release()

    def close_for(self, successor: str) -> None:
        """After the journal is closed. Lets this worker take over at once; ours stays a member of the cluster."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._lease.release_to(successor)

    # Files beside the journal.

    def _restore(self) -> None:
        """The bucket decides, unless the shard is new: then the data directory's files are its first ones."""
        is_new = not any(name.endswith(".journal") for name in self.files.list())
        for name in PLAIN_FILES:
            local = self._data / name
            if name in self.files.list():
                file = self.files.open(name)
                self._seen[name] = file.read(0, file.size())
                write_private(local, self._seen[name])
            elif is_new and local.exists():
                self.put(name, local.read_bytes())
            else:
                local.unlink(missing_ok=True)
        if ACCESS_FILE in self.files.list():  # by penstock store copy, from a directory
            file = self.files.open(ACCESS_FILE)
            (self.member.access or ClusterAccess(self.bucket, self._data)).begin(file.read(0, file.size()))

    def put(self, name: str, content: bytes) -> None:
        """Replace the file as a whole. It is durable when this returns."""
        with self._writing:
            partial = f"{name}.new"
            with suppress(FileNotFoundError):
                self.files.remove(partial)
            self.files.create(partial).write(0, [content])
            self.files.rename(partial, name)
            self.files.settle(name)
            self.files.sync()
            self._seen[name] = content

    def put_changed(self) -> None:
        """Files that commands of this machine have changed: `penstock access`."""
        for name, content in self._changed():
            self.put(name, content)
        if self.member.access is not None:
            self.member.access.look_if_due()

    def _changed(self) -> Iterator[tuple[str, bytes]]:
        for name in PLAIN_FILES:
            with suppress(FileNotFoundError):
                content = (self._data / name).read_bytes()
                if content != self._seen.get(name):
                    yield name, content

    # For display.

    @property
    def problem(self) -> str:
        """Why nothing becomes durable, or sources are disconnected; "" if all is well."""
        return self.files.problem or self._late()

    def _late(self) -> str:
        if self._lease.state is not LeaseState.LATE:
            return ""
        cause = self.member.leases.counts().problem
        why = "" if cause is None else f"{cause.message}: "
        return f"{why}the lease cannot be renewed, so sources are disconnected"

    def status(self) -> BucketStatus:
        counts, leases, stored = self.bucket.counts(), self.member.leases.counts(), self.files.counts()
        rate = counts.requests_per_second + leases.requests_per_second
        return BucketStatus(
            url=self.bucket.url,
            worker=self._lease.worker,
            lease=self._lease.state.value,
            objects=stored.objects,
            bytes=stored.bytes,
            log_objects=stored.log_objects,
            cached_bytes=stored.cached_bytes,
            requests=dict(Counter(counts.requests) + Counter(leases.requests)),
            failures=dict(Counter(counts.failures) + Counter(leases.failures)),
            bytes_read=counts.bytes_read,
            bytes_written=counts.bytes_written,
            requests_per_second=round(rate, 2),
            requests_per_month=per_month(rate),
            problem=self.problem,
        )


def patiently(requests: Callable[[], T], on_waiting: Callable[[OwnerSeen], None], stop: Event) -> T | None:
    """The first requests to a store, which may start together with its workers. None if it was stopped. Raises what the
    store raises, BucketUnavailable only after a minute.
    """
    pauses, deadline = Pauses(_PROBES), time.monotonic() + UNREACHABLE_SECONDS_MAX
    while not stop.is_set():
        try:
            return requests()
        except BucketUnavailable as error:
            if time.monotonic() > deadline:
                raise
            on_waiting(OwnerSeen("", {}, 0.0, 0.0, problem=str(error)))
            stop.wait(pauses.next())
    return None


def check_no_journal(data: Path) -> None:
    """Raises RequestError."""
    journal = data / "journal"
    if journal.is_dir() and any(journal.glob("*.journal")):
        raise RequestError(
            f"{data} has a journal of its own, which a worker with --store would not use",
            f"Move it to the bucket: penstock store copy {data} URL. Or choose another --data directory.",
        )
