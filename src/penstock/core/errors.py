"""Every error that Penstock raises on purpose, by the question "who must act?".

    PenstockError
    ├── RequestError               the caller must change the request
    │   ├── IncompleteCopy         a store that was not copied to the end
    │   ├── NoSuchSegment
    │   ├── SegmentExists
    │   ├── SegmentSealed
    │   ├── SegmentTruncated       the bytes asked for were removed by retention
    │   ├── ConditionFailed        a conditional append or update lost the race
    │   ├── LimitExceeded          a named limit would be exceeded
    │   ├── Fenced                 a newer generation of the pipeline has taken over
    │   ├── Unauthenticated        no valid token or certificate
    │   │   └── TokenExpired       get another token where this one came from
    │   ├── Forbidden              the principal's role or prefixes do not allow it
    │   ├── DataLoss               bytes that a reader needs were removed
    │   └── PipelineError          the ledger of a pipeline contradicts it
    ├── NoRoom                     wait, or make room: nothing was stored
    │   ├── QuotaReached
    │   └── DiskFull
    ├── Damaged                    an operator must look: stored bytes fail their checksum
    │   └── UnreadableFormat       another version wrote the data: use that one, or start over
    ├── StoreFailed                restart the worker: the disk refused a write or an fsync
    │   └── TakenOver              another worker has taken over the store: this one must stop
    ├── BucketFailed               the object store did not do what was asked
    │   ├── BucketUnavailable      try again later: whether a write took effect is unknown
    │   │   ├── BucketThrottled    try again more slowly
    │   │   └── BucketUnreachable
    │   ├── BucketForbidden        an operator must change credentials or policies
    │   ├── BucketFull             an operator must raise the quota
    │   └── BucketUnsuitable       it does not honour conditional writes: use another store
    ├── WorkerFailed               restart the worker: a part that it cannot run without has ended
    ├── StoreInUse                 another process uses this data directory
    ├── Outdated                   run the epoch again: what it reads was changed while it was running
    ├── CheckpointFailed           the files of a pipeline's checkpoint cannot be used at the moment
    ├── ProtocolError              the peer sent what the protocol does not allow
    └── Unavailable                the worker cannot be reached at the moment

Each carries a *hint*: what to do next, in one sentence.
"""


class PenstockError(Exception):
    """Base of all; `hint` is what to do next."""

    hint = ""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class RequestError(PenstockError):
    """The request cannot succeed as it is; repeating it will not help."""


class IncompleteCopy(RequestError):
    """A store that `penstock store copy` has not finished."""

    hint = "Run penstock store copy again, with the same arguments: it continues. Or delete the copy."


class NoSuchSegment(RequestError):
    hint = "Create it first: penstock segment create NAME"


class SegmentExists(RequestError):
    hint = "Use the existing segment, or choose another name."


class SegmentSealed(RequestError):
    hint = "A sealed segment accepts no more bytes: append to another one."


class SegmentTruncated(RequestError):
    """The requested bytes are below the start offset; `start` is the first offset that can still be read."""

    hint = "Read from the segment's start offset: penstock segment info NAME"

    def __init__(self, message: str, start: int, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.start = start


class ConditionFailed(RequestError):
    """A condition on an offset or an attribute does not hold; nothing was changed."""


class LimitExceeded(RequestError):
    """A named limit would be exceeded; nothing was changed."""


class Fenced(RequestError):
    """A newer generation of the pipeline has taken over; the older one can no longer change anything."""

    hint = "Another run of the pipeline has replaced this one: stop this one."


class Unauthenticated(RequestError):
    """The worker could not authenticate the caller."""

    hint = "Name the file with your token in PENSTOCK_TOKEN_FILE; on the worker's machine it is DATA/token."


class TokenExpired(Unauthenticated):
    """The token was valid, and the caller gets another where it got this one."""


class Forbidden(RequestError):
    """The caller is authenticated, but not allowed to do this."""

    hint = "Ask an administrator of the worker for another role or prefix: penstock access add"


class DataLoss(RequestError):
    """Bytes that a reader needs were removed before it had read them."""

    hint = "Read with failOnDataLoss=false to skip them, or start from scratch: penstock pipeline reset NAME"


class PipelineError(RequestError):
    """The request contradicts the ledger of the pipeline; nothing was changed."""

    hint = "Look at the pipeline: penstock pipeline list"


class NoRoom(PenstockError):
    """There is no room now; nothing was stored, and the same request may succeed later."""


class QuotaReached(NoRoom):
    hint = "Delete or truncate what is no longer needed, let readers complete, or raise the quota."


class DiskFull(NoRoom):
    hint = "Free space on the disk, let pipelines catch up, or delete segments; appends resume automatically."


class Damaged(PenstockError):
    """Stored bytes fail their checksum; the message names file and offset."""

    hint = "Run: penstock segment verify --data DIR, then restore the file or truncate past the damage."


class UnreadableFormat(Damaged):
    """The data are in a format that this version cannot read. They are refused as a whole."""

    def __init__(self, what: str, found: int | None, known: int, start_over: str) -> None:
        """`what` names the data and their location; `found` is None for data without a format version; `start_over`
        explains how to continue without the data.
        """
        self.found = found
        format_found = "no format version" if found is None else f"format {found}"
        formats = f"{format_found}; this version reads format {known}"
        if found is not None and found > known:
            super().__init__(f"{what} was written by a newer version of Penstock ({formats})", "Use that version.")
        else:
            super().__init__(f"{what} was written by a development version before 0.1 ({formats})", start_over)


class StoreFailed(PenstockError):
    """A write or an fsync failed. Acknowledged data are safe; the rest may be lost."""

    hint = "Check the disk, then restart the worker; it recovers automatically."


class TakenOver(StoreFailed):
    """Another worker has taken over the store; the message names it. What this one has acknowledged is safe there."""

    hint = "Use that worker. This one can be started again as its standby."


class BucketFailed(PenstockError):
    """The object store did not do what was asked."""


class BucketUnavailable(BucketFailed):
    """The same request may succeed later. Whether a write took effect is unknown."""


class BucketThrottled(BucketUnavailable):
    hint = "The object store limits requests; Penstock slows down automatically."


class BucketUnreachable(BucketUnavailable):
    hint = "Check the network and the object store; Penstock tries again automatically."


class BucketTimedOut(BucketUnreachable):
    """It may be well, and the line slow."""


class BucketForbidden(BucketFailed):
    """The object store refuses the credentials, or they do not allow this."""

    hint = "Check the store's credentials and the bucket's policy: objects must be read, written, listed and deleted."


class BucketFull(BucketFailed):
    """The object store has no room left for us; nothing was written."""

    hint = "Raise the quota of the bucket or free space in it; Penstock tries again automatically."


class BucketUnsuitable(BucketFailed):
    """The object store does not do what the journal depends on."""

    hint = "Use a store with conditional writes: S3, GCS, Azure Blob, MinIO, SeaweedFS, Ceph."


class WorkerFailed(PenstockError):
    hint = "Restart the worker; its log has the reason."


class StoreInUse(PenstockError):
    hint = "Stop the other worker, or use another --data directory."


class Outdated(PenstockError):
    """An epoch cannot be committed as it was planned; the next query plans it again, and can."""

    hint = "It is run again when its query is restarted, which penstock run does automatically."


class CheckpointFailed(PenstockError):
    """The file system refused access to a pipeline's checkpoint; the same access may succeed later."""

    hint = "Check that the folder can be read and written, and that its disk has room."


class ProtocolError(PenstockError):
    """The peer sent what the protocol does not allow; its connection ends."""


class Unavailable(PenstockError):
    hint = "Is the worker running? Start it: penstock worker --data DIR"
