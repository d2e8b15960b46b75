"""The store's limits, each with its reason."""

from dataclasses import dataclass

from penstock.core.sizes import KIB, MIB
from penstock.store.bucket_directory import PLACED_BYTES_MIN
from penstock.store.log_object import OBJECT_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How much a store may use. Sizes are in bytes."""

    chapter_bytes: int = 64 * MIB
    """Size of a journal file: bounds start-up time, and what compaction moves at once."""

    chapter_records_max: int = 200_000
    """Records in a journal file: bounds start-up time and the index of the last file when records are tiny."""

    reserve_bytes: int = 256 * MIB
    """Disk space reserved for merge, truncate, delete and compaction, so that a full store can drain."""

    index_cache_bytes: int = 64 * MIB
    """Indexes of closed chapters cached in memory for readers."""

    open_files_max: int = 128
    """Journal files open at a time; far below the usual limit of 1,024 descriptors."""

    append_bytes_max: int = 16 * MIB
    """Largest single append: somewhat more than the segment protocol's largest message."""

    segment_quota_bytes: int | None = None
    """Bytes that a segment may contain before appends to it are refused, unless it has a quota of its own."""

    segments_max: int = 1_000_000
    """At about 1 KiB each this bounds the table of segments to 1 GiB."""

    name_bytes_max: int = 1024
    """Longest name of a segment, in UTF-8."""

    writers_per_segment_max: int = 4096
    """Writers remembered per segment; beyond it the one that has been silent longest is forgotten."""

    attributes_per_segment_max: int = 256
    """Attributes are for small facts; anything larger is data."""

    compact_below: float = 0.25
    """If a closed chapter has a smaller share of live bytes than this, they are moved and the chapter is deleted."""

    snapshot_rows_max: int = 2000
    """Segments that a snapshot encodes at once, in some 10 ms; with more, it is encoded ahead, in steps."""

    unsynced_seconds_max: float = 10.0
    """A write that is not on disk after this long is reported as a problem: a healthy disk takes milliseconds."""

    idle_proof_seconds: float = 0.05
    """Silence after which the journal on a disk proves its last records durable with an empty one."""

    @property
    def reserve_chapters(self) -> int:
        return -(-self.reserve_bytes // self.chapter_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """How a journal in a bucket is written, read and tidied up."""

    cache_bytes: int = 1 << 30
    """Of the local cache, without the open chapter."""

    object_bytes_max: int = OBJECT_BYTES_MAX

    groups_max: int = 500
    """Groups in the log before it is folded: a take-over reads them all, 16 at a time: a second at 30 ms each."""

    unfolded_bytes_max: int = 128 << 20
    """Bytes that only the log has, before a sync folds them itself: a take-over reads them all."""

    linger_seconds: float = 1.0
    """How long a removed file waits for others, to share one object of the log."""

    release_seconds: float = 30.0
    """Between two folds that serve no purpose but to delete objects."""

    placed_bytes_min: int = PLACED_BYTES_MIN
    """A write of this size stays in its object of the log."""

    beside_bytes_min: int = 64 * KIB
    """A write of this size goes to the local file while it goes to the bucket: less would not be worth a thread."""

    held_bytes_max: int = 32 << 20
    """The newest bytes of an open file, if they are in the bucket alone: their readers need not fetch them."""
