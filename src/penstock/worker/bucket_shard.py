"""A shard in a bucket as a worker owns it: the lease, the journal's files, and the few files beside the journal."""

import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer

from penstock.access.file import FILE as ACCESS_FILE
from penstock.application.deployments import FILE as APPLICATION_FILE
from penstock.bucket.cluster_records import worker_id
from penstock.bucket.counted_bucket import CountedBucket
from penstock.bucket.lease import REQUEST_SECONDS_MAX, UNREACHABLE_SECONDS_MAX, Lease, ShardCandidate, acquire
from penstock.bucket.lease_state import LeaseState, OwnerSeen
from penstock.bucket.objects import Bucket
from penstock.bucket.probe import probe
from penstock.bucket.stores import open_bucket
from penstock.core.durable_files import write_private
from penstock.core.errors import BucketUnavailable, PenstockError, RequestError, TakenOver
from penstock.core.retry import RetryPolicy
from penstock.protocol.api.status import BucketStatus
from penstock.store.bucket_files import BucketFiles, BucketSettings
from penstock.store.bucket_log import reading_threads
from penstock.store.files import RealFiles
from penstock.worker.settings import STORE_FILE, BucketOptions

log = logging.getLogger(__name__)

PLAIN_FILES = (APPLICATION_FILE, ACCESS_FILE)
"""Files of the data directory that belong to the shard. The owner's token does not: it stands for the right to read
this machine's files.
"""

_STOP_SECONDS_MAX = 10.0
"""How long a worker that stops waits for a bucket that does not answer. What it gives up was not acknowledged."""
_PROBES = RetryPolicy(first_seconds=0.5, max_seconds=5.0)
_LOOK_SECONDS = 0.1
_MONTH_SECONDS = 30 * 24 * 3600


class BucketShard:
    """From the take-over until `close`. If another worker takes over, `on_lost` is called with an error that names it;
    while the lease cannot be renewed, others may, and `on_late` is called.
    """

    def __init__(
        self, options: BucketOptions, data: Path, on_waiting: Callable[[OwnerSeen], None] = lambda _: None
    ) -> None:
        """Waits for the lease. Raises what the store raises, and RequestError for a data directory that has a journal
        of its own.
        """
        _check_no_journal(data)
        self._data = data
        self.bucket = CountedBucket(open_bucket(options.url))
        self.on_late: Callable[[], object] = lambda: None
        self.on_lost: Callable[[PenstockError], object] = lambda _: None
        self._writing = Lock()
        self._seen: dict[str, bytes] = {}
        self._readers = reading_threads()
        self._directory = RealFiles(data)
        self._directory.lock()  # before the lease: a second worker on one directory must not end the first one
        try:
            self._take_over(options, on_waiting)
            write_private(data / STORE_FILE, f"{self.bucket.url}\n".encode())
        except BaseException:
            self._directory.close()
            raise

    def _take_over(self, options: BucketOptions, on_waiting: Callable[[OwnerSeen], None]) -> None:
        _probe(self.bucket, on_waiting)
        self._leases = CountedBucket(open_bucket(options.url, timeout=REQUEST_SECONDS_MAX))
        candidate = ShardCandidate(self._leases, worker_id(socket.gethostname()), {})
        lease = acquire(candidate, force=options.take_over, on_waiting=on_waiting, on_change=self._lease_changed)
        assert lease is not None  # nothing stops it
        self._lease: Lease = lease
        try:
            self._wait_until_held()
            self.files = BucketFiles(
                self.bucket,
                RealFiles(options.cache),
                owner=f"worker {lease.worker}",
                settings=BucketSettings(cache_bytes=options.cache_bytes),
                executor=self._readers,
            )
            self.files.on_failure = self._lost
            lease.check()  # another worker may have taken over while the log was read
            self._restore()
        except BaseException:
            self._lease.release()
            raise

    def _wait_until_held(self) -> None:
        """A process that slept since the lease was acquired must not fence the worker that has it now."""
        deadline = time.monotonic() + UNREACHABLE_SECONDS_MAX
        while self._lease.state is LeaseState.LATE and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        self._lease.check()

    def serve(self, addresses: dict[str, str]) -> None:
        """The worker listens there: others may know. The background work starts."""
        self._lease.set_addresses(addresses)
        self._report_loss(self._lease)  # nobody was told of one before `on_lost` was set
        self.files.start()

    def may_act(self) -> bool:
        """Whether nobody can have taken over, as far as the clock tells. Otherwise non-voting sinks get nothing."""
        return self._lease.state is LeaseState.HELD

    def _lease_changed(self, lease: Lease) -> None:
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
        self._directory.close()

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

    def _changed(self) -> Iterator[tuple[str, bytes]]:
        for name in PLAIN_FILES:
            with suppress(FileNotFoundError):
                content = (self._data / name).read_bytes()
                if content != self._seen.get(name):
                    yield name, content

    # For people.

    @property
    def problem(self) -> str:
        """Why nothing becomes durable; "" if it does."""
        return self.files.problem

    def status(self) -> BucketStatus:
        counts, leases, stored = self.bucket.counts(), self._leases.counts(), self.files.counts()
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
            requests_per_month=round(rate * _MONTH_SECONDS),
            problem=self.problem,
        )


def _probe(bucket: Bucket, on_waiting: Callable[[OwnerSeen], None]) -> None:
    """A store may start together with its workers. Raises what it raises, BucketUnavailable only after a minute."""
    for attempt in _PROBES.retrying(UNREACHABLE_SECONDS_MAX, BucketUnavailable):
        with attempt:
            try:
                probe(bucket)
            except BucketUnavailable as error:
                on_waiting(OwnerSeen("", {}, 0.0, 0.0, problem=str(error)))
                raise


def _check_no_journal(data: Path) -> None:
    journal = data / "journal"
    if journal.is_dir() and any(journal.glob("*.journal")):
        raise RequestError(
            f"{data} has a journal of its own, which a worker with --store would not use",
            f"Move it to the bucket: penstock store copy {data} URL. Or choose another --data directory.",
        )
