"""The tests that every codec must pass, including ours: `class TestMine(CodecConformance)` in a pytest file.

    from penstock.testing.codecs import CodecConformance

    class TestMine(CodecConformance):
        codec = MyCodec
        schema = "id INT, name STRING"
        events = {b"1;x": {"id": 1, "name": "x"}}
        bad = (b"", b"x;y")

Needs pytest, but none of its plugins, and no Spark.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from penstock.core.ddl import parse_ddl
from penstock.core.kinds import Fields, arrow_field
from penstock.spark.codecs.api import Codec, Columns

_DAMAGED = 2000
"""Damaged events that a decoder has to survive."""


class CodecConformance:
    """What every codec has to pass: derive a test class from it, and set `codec`."""

    codec: ClassVar[type[Codec]]
    schema: ClassVar[str | None] = None
    """In Spark's DDL; None: the codec is tested without one."""
    events: ClassVar[Mapping[bytes, Mapping[str, Any]]]
    """Events, and the rows that they are decoded into."""
    bad: ClassVar[Sequence[bytes]]
    """Events that cannot be decoded."""
    encodes: ClassVar[bool] = True
    """Whether it writes rows."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Of `codec_config`."""

    def made(self) -> Codec:
        """The codec, with its options."""
        model = self.codec.about.model()
        return self.codec(None if model is None else model.model_validate(self.options))

    def _fields(self) -> Fields | None:
        return None if self.schema is None else parse_ddl(self.schema)

    def _schema(self) -> pa.Schema:
        return pa.schema([arrow_field(field) for field in self.made().fields(self._fields())])

    def _decode(self, values: Sequence[bytes]) -> tuple[list[dict[str, Any]], Mapping[int, str]]:
        found = self.made().decoder(self._fields())(pa.array(values, pa.binary()))
        assert isinstance(found, Columns)
        assert all(len(array) == len(values) - len(found.failed) for array in found.arrays)
        assert [array.type for array in found.arrays] == self._schema().types
        assert all(0 <= row < len(values) and reason for row, reason in found.failed.items())
        batch = pa.RecordBatch.from_arrays(list(found.arrays), schema=self._schema())
        return batch.to_pylist(maps_as_pydicts="strict"), found.failed

    def test_it_has_a_name_a_sentence_and_content_types(self) -> None:
        about = self.codec.about
        assert about.name
        assert about.text.endswith(".")
        assert all("/" in content_type for content_type in about.content_types)
        assert about.content_types

    def test_events_are_decoded_into_rows_of_the_declared_types(self) -> None:
        rows, failed = self._decode([*self.events])
        assert (rows, failed) == ([dict(row) for row in self.events.values()], {})

    def test_events_that_cannot_be_decoded_fail_with_a_reason_and_do_not_affect_others(self) -> None:
        mixed = [value for event in self.events for value in (*self.bad, event)]
        rows, failed = self._decode(mixed)
        assert [mixed[row] for row in sorted(failed)] == [*self.bad] * len(self.events)
        assert rows == [dict(row) for row in self.events.values()]

    def test_an_event_is_decoded_the_same_alone(self) -> None:
        for event, row in self.events.items():
            assert self._decode([event]) == ([dict(row)], {})

    def test_an_empty_batch_has_all_columns(self) -> None:
        assert self._decode([]) == ([], {})

    def test_damaged_events_never_stop_a_decoder(self) -> None:
        """Cut, repeated, and with other bytes: whatever comes of them, each is a row or has failed."""
        chance = random.Random(_DAMAGED)
        given = [*self.events, *self.bad]
        self._decode([_damaged(chance.choice(given), chance) for _ in range(_DAMAGED)])

    def test_rows_come_back_as_they_were_encoded(self) -> None:
        if not self.encodes:
            return
        batch = pa.RecordBatch.from_pylist([dict(row) for row in self.events.values()], schema=self._schema())
        written = self.made().encoder(batch.schema)(batch)
        assert (written.type, written.null_count) == (pa.binary(), 0)
        assert self._decode(written.to_pylist()) == (batch.to_pylist(maps_as_pydicts="strict"), {})
        assert self.made().encoder(batch.schema)(batch.slice(1)).to_pylist() == written.to_pylist()[1:]


def _damaged(event: bytes, chance: random.Random) -> bytes:
    at = chance.randint(0, len(event))
    match chance.randrange(4):
        case 0:
            return event[:at]
        case 1:
            return event[:at] + bytes([chance.randrange(256)]) + event[at + 1 :]
        case 2:
            return event + event
    return event[:at] + chance.randbytes(3) + event[at:]
