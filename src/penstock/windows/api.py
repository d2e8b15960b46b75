"""The functions that a pipeline's function calls as `penstock.windows`. Importing it does not import Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from penstock.core.durations import Duration, format_duration, parse_duration_us
from penstock.core.errors import RequestError
from penstock.core.sizes import parse_size
from penstock.windows.buckets import BUCKETS, check_buckets
from penstock.windows.kinds import Late, LateRule, Session, Sliding, Tumbling, Window
from penstock.windows.measures import Measure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.windows.aggregates import Aggregate
    from penstock.windows.measures import ColumnLike

_KINDS = "Pass windows.tumbling(…), windows.sliding(…) or windows.session(…)."
_RESULTS = "Name each result: aggregate(…, n=windows.count(), total=windows.sum('amount'))."


def tumbling(size: Duration, *, offset: Duration = "0 seconds") -> Tumbling:
    """Windows of this size, back to back, starting at multiples of it since 1970-01-01T00:00Z, plus `offset`."""
    return Tumbling(size_us=parse_duration_us("size", size), offset_us=parse_duration_us("offset", offset))


def sliding(size: Duration, slide: Duration, *, offset: Duration = "0 seconds") -> Sliding:
    """Windows of this size, one starting every `slide`: an event is in several of them."""
    return Sliding(
        size_us=parse_duration_us("size", size),
        slide_us=parse_duration_us("slide", slide),
        offset_us=parse_duration_us("offset", offset),
    )


def session(gap: Duration) -> Session:
    """Windows that end when a key has been silent for `gap`: from its first event to `gap` after its last one."""
    return Session(gap_us=parse_duration_us("gap", gap))


def aggregate(
    frame: DataFrame,
    window: Window,
    *,
    keys: ColumnLike | Sequence[ColumnLike] = (),
    where: str | None = None,
    select: Mapping[str, str] | None = None,
    allowed_lateness: Duration = "0 seconds",
    late: Late = "keep",
    late_rule: LateRule = "window",
    event_time: str = "event_time",
    buckets: int = BUCKETS,
    bucket_bytes_max: int | str = "256MiB",
    name: str | None = None,
    **results: Measure | Aggregate,
) -> DataFrame:
    """The results per window and key: a row when the pipeline's watermark reaches the window's end, and another one in
    each epoch that changes the window until `allowed_lateness` later.

    `frame` is derived from a pipeline's inputs and has kept a timestamp column `event_time`. The result has the keys,
    `window_start`, `window_end`, `pane` (`on_time` or `update`), `revision`, the results, for sessions `replaces`, the
    column `event_time` (the window's last microsecond).

    `where` and `select` are Spark SQL: a condition on the frame's columns, then columns to add. They are the same as
    `frame.where(…).withColumns(…)`, except that windows of an input itself then need not wait for Spark to read it: its
    readers compute partial results, where that gives the same (`penstock explain` shows it).

    An event whose windows are all closed is late: with `late="keep"` it goes to the port `late` with its original
    bytes, `late="drop"` only counts it; with `late_rule="strict"` every event behind the watermark is late. An event
    without a time goes to the port `err`.

    State is kept in `buckets` of keys, each of at most `bucket_bytes_max`. Their number, the windows and the keys
    cannot be changed while there is state. An aggregate that is added is null where a window has events of the key
    already; what a shorter lateness has purged stays closed. `name` is the operator's name in metrics.

    Raises RequestError.
    """
    from penstock.windows.builder import Settings, build

    _check_window(window)
    _check_choice("late", late, get_args(Late))
    _check_choice("late_rule", late_rule, get_args(LateRule))
    listed = _listed(keys)
    settings = Settings(
        window=window,
        keys=listed,
        measures=dict(_measures(results)),
        where=_text("where", where),
        select={name: _text(f"select: {name}", text) or "" for name, text in (select or {}).items()},
        lateness_us=parse_duration_us("allowed_lateness", allowed_lateness),
        late=late,
        late_rule=late_rule,
        event_time=event_time,
        buckets=check_buckets(buckets),
        bucket_bytes_max=_bytes(bucket_bytes_max),
        name=name or _name(_kind(window), listed),
    )
    return build(frame, settings)


def _text(what: str, given: str | None) -> str | None:
    if given is not None and not isinstance(given, str):
        raise RequestError(f"{what}={given!r} is not a text", 'Write Spark SQL: "amount > 10", or use frame.where(…).')
    return given


def ordered(
    frame: DataFrame,
    *,
    keys: ColumnLike | Sequence[ColumnLike] = (),
    late: Late = "keep",
    event_time: str = "event_time",
    buckets: int = BUCKETS,
    bucket_bytes_max: int | str = "256MiB",
    name: str | None = None,
) -> DataFrame:
    """The same rows with the same columns, those of a key in the order of their event times: each row is buffered until
    the pipeline's watermark has passed it, then emitted.

    Rows of the same time are in the order of `stream_id` and `message_id`, if the frame has kept them, then as they
    were read. The rows of a key are in one partition of an epoch, and all rows of an epoch are earlier than those of
    later epochs. The order holds as long as nothing shuffles the rows: operations on single rows and Penstock's sink
    keep it. Without keys, all rows are in one order, and in one task.

    `frame` is derived from a pipeline's inputs and has kept a timestamp column `event_time`. An event behind the
    watermark is late: with `late="keep"` it goes to the port `late` with its original bytes, `late="drop"` only counts
    it. An event without a time goes to the port `err`.

    State is kept in `buckets` of keys, each of at most `bucket_bytes_max`: what lies between the watermark and the
    newest event. Their number, `event_time` and the keys cannot be changed while there is state. A column that is added
    is null in rows that are buffered already. `name` is the operator's name in metrics.

    Raises RequestError.
    """
    from penstock.windows.ordering import build_ordered

    _check_choice("late", late, get_args(Late))
    listed = _listed(keys)
    return build_ordered(
        frame,
        listed,
        late=late,
        event_time=event_time,
        buckets=check_buckets(buckets),
        bucket_bytes_max=_bytes(bucket_bytes_max),
        name=name or _name("ordered", listed),
    )


def _listed(keys: ColumnLike | Sequence[ColumnLike]) -> list[ColumnLike]:
    return [keys] if isinstance(keys, str) or not isinstance(keys, Sequence) else [*keys]


def _bytes(given: int | str) -> int:
    return parse_size(given) if isinstance(given, str) else given


def _check_window(window: object) -> None:
    if not isinstance(window, Tumbling | Sliding | Session):
        raise RequestError(f"{window!r} is not a window", _KINDS)


def _check_choice(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise RequestError(f"{what}={given!r} is not valid", f"Write {' or '.join(map(repr, known))}.")


def _measures(results: Mapping[str, Any]) -> Iterator[tuple[str, Measure]]:
    from penstock.windows.aggregates import Aggregate

    if not results:
        raise RequestError("aggregate() has no results to compute", _RESULTS)
    for name, given in results.items():
        match given:
            case Measure():
                yield name, given
            case Aggregate():
                yield name, Measure(given, _inputs(name, given))
            case _:
                raise RequestError(f"{name}={given!r} is neither an aggregate nor an option", _RESULTS)


def _inputs(name: str, aggregate: Aggregate) -> tuple[str, ...]:
    inputs = getattr(aggregate, "inputs", None)
    if not isinstance(inputs, tuple):
        raise RequestError(
            f"{name}: {type(aggregate).__name__}.inputs is {inputs!r}, not a tuple of column names",
            'Name the columns that `add` receives in the class: inputs = ("amount",).',
        )
    return inputs


def _kind(window: Window) -> str:
    match window:
        case Tumbling():
            return f"tumbling {format_duration(window.size_us)}"
        case Sliding():
            return f"sliding {format_duration(window.size_us)} every {format_duration(window.slide_us)}"
        case Session():
            return f"session {format_duration(window.gap_us)}"


def _name(kind: str, keys: Sequence[ColumnLike]) -> str:
    """The operator's default name, as metrics show it."""
    names = [key for key in keys if isinstance(key, str)]
    return f"{kind} by {', '.join(names)}" if names else kind
