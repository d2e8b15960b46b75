"""Rows of the same event, after the shuffle that brings them together."""

import pyarrow as pa

from penstock.windows.operator import distinct

PLACED = ("segment", "offset", "value")


def test_of_each_event_the_earliest_row_is_kept_and_rows_that_name_none_are_all_kept() -> None:
    rows = [("s", 1, None, 5), ("s", 1, None, 3), (None, None, b"x", 1), ("s", 2, None, 9), ("t", 1, None, 7)]
    columns = zip(*[*rows, (None, None, b"x", 1)], strict=True)
    table = pa.table(dict(zip(("c0", "c1", "c2", "t"), map(list, columns), strict=True)))
    found = distinct([table.slice(0, 1), table.slice(1)], PLACED).to_pylist()
    assert sorted((tuple(row.values()) for row in found), key=str) == [
        ("s", 1, None, 3),
        ("s", 2, None, 9),
        ("t", 1, None, 7),
        (None, None, b"x", 1),
        (None, None, b"x", 1),
    ]


def test_rows_without_a_time_are_distinguished_by_their_event_alone() -> None:
    table = pa.table({"c0": [7, 7, 8], "c1": [1, 1, 1], "c2": [b"a", b"a", b"a"]})
    assert distinct([table], ("stream_id", "message_id", "value")).column("c0").to_pylist() == [7, 8]
