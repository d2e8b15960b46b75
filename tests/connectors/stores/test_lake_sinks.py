"""Tables in files: columns, partitions, sizes, other writers, and workers that were replaced."""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake
from pydantic import ValidationError
from pyiceberg.expressions import AlwaysTrue, EqualTo

from penstock.connectors.delta.connector import DeltaOptions
from penstock.connectors.iceberg.connector import Iceberg
from penstock.connectors.iceberg.options import IcebergOptions
from penstock.connectors.iceberg.table import url_of
from penstock.connectors.lake import places
from penstock.connectors.lake.places import BucketPlace, DirectoryPlace, Place
from penstock.connectors.lake.sink import LakeSink
from penstock.connectors.parquet.connector import Parquet, ParquetOptions
from penstock.connectors.permissions import NotPermitted, Permissions
from penstock.connectors.sink_api import SinkLost
from tests.connectors.stores.lakes import LAKES, ODD_TEXTS, DeltaStore, IcebergStore, LakeStore, ParquetStore
from tests.connectors.stores.tables import epoch, opened
from tests.fixtures.peers import stored

SCHEMA = [("id", "bigint"), ("country", "string")]


@pytest.fixture(params=[*LAKES])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LakeStore:
    return LAKES[request.param](str(tmp_path / "table"))


def ids(store: LakeStore) -> list[int]:
    return sorted(row["id"] for row in store.rows())


def test_columns_follow_the_pipeline_by_the_stated_rule(store: LakeStore) -> None:
    with opened(store.sink(lambda: SCHEMA)) as sink:
        epoch(1, ['{"id": 1, "country": "de"}']).deliver(sink)
    with opened(store.sink(lambda: [("id", "int"), ("price", "decimal(10,2)")])) as sink:
        epoch(2, ['{"id": 2, "price": 1.50}']).deliver(sink)
    with opened(store.sink(lambda: [("id", "string")])) as sink:
        vote = epoch(3, ['{"id": "x"}']).prepare(sink)
        assert "its column 'id' is int64, and the rows have string there" in vote.reason
        epoch(4, []).deliver(sink)
    found = {row["id"]: (row["country"], str(row["price"])) for row in store.rows()}
    assert found == {1: ("de", "None"), 2: (None, "1.50")}


def test_a_row_that_does_not_fit_is_a_vote_of_no_and_leaves_nothing(store: LakeStore) -> None:
    with opened(store.sink(lambda: SCHEMA)) as sink:
        vote = epoch(1, ['{"id": 1}', '{"id": "x"}']).prepare(sink)
        assert "message 100009 (row 2 of the epoch): " in vote.reason
        assert not [key for key in store.files() if not key.endswith("/record")]


def test_partitions_are_folders_and_large_epochs_are_several_files(store: LakeStore) -> None:
    rows = [f'{{"id": {number}, "country": {country}}}' for number, country in enumerate(['"de"', '"fr"', "null"] * 4)]
    with opened(store.sink(lambda: SCHEMA, partition_by=["country"], file_bytes=1)) as sink:
        epoch(1, rows).deliver(sink)
    assert ids(store) == [*range(12)]
    folders = [key.partition("country=")[2].partition("/")[0] for key in store.files() if key.endswith(".parquet")]
    assert {*folders} == {"de", "fr", "__HIVE_DEFAULT_PARTITION__"}
    with opened(store.sink(lambda: SCHEMA, partition_by=["id"])) as sink:
        assert "it is partitioned by ('country',)" in epoch(2, rows).prepare(sink).reason


def read_by_others(store: LakeStore, country: str | None = None) -> dict[int, str | None]:
    """By the library of the table's format, or as a dataset of Arrow: the rows of all partitions, or of one."""
    if isinstance(store, DeltaStore):
        only = None if country is None else [("country", "=", country)]
        table = DeltaTable(store.place).to_pyarrow_table(filters=only)
    elif isinstance(store, IcebergStore):
        is_of: Any = EqualTo  # pydantic's plugin would not know its arguments
        rule = AlwaysTrue() if country is None else is_of("country", country)
        table = store.opened().scan(row_filter=rule).to_arrow()
    else:
        by = ds.partitioning(pa.schema([("country", pa.string())]), flavor="hive")
        only_one = None if country is None else ds.field("country") == country
        table = ds.dataset(store.place, partitioning=by).to_table(filter=only_one)
    return dict(zip(table["id"].to_pylist(), table["country"].to_pylist(), strict=True))


def test_odd_values_of_partition_columns_are_read_by_other_libraries(store: LakeStore) -> None:
    rows = [json.dumps({"id": number, "country": country}) for number, country in enumerate(ODD_TEXTS)]
    with opened(store.sink(lambda: SCHEMA, partition_by=["country"])) as sink:
        epoch(1, rows).deliver(sink)
    assert read_by_others(store) == dict(enumerate(ODD_TEXTS))
    if not isinstance(store, ParquetStore):  # its folders alone have the values
        assert {row["id"]: row["country"] for row in store.rows()} == dict(enumerate(ODD_TEXTS))
    for number, country in enumerate(ODD_TEXTS):
        if country is not None:
            assert read_by_others(store, country) == {number: country}


def test_an_epoch_larger_than_the_buffers_is_several_row_groups_and_files(
    store: LakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BUFFER_BYTES_MAX", "GROUP_BYTES", "FILES_OPEN_MAX"):
        monkeypatch.setattr(f"penstock.connectors.lake.files.{name}", 1)
    rows = [f'{{"id": {number}, "country": "{number % 3}"}}' for number in range(12)]
    with opened(store.sink(lambda: SCHEMA, partition_by=["country"])) as sink:
        epoch(1, rows).deliver(sink)
    assert ids(store) == [*range(12)]
    assert len([key for key in store.files() if key.endswith(".parquet")]) > 3


def test_a_time_that_python_has_no_year_for_is_written_without_bounds(store: LakeStore) -> None:
    columns = "id BIGINT, country STRING, at TIMESTAMP, day DATE"
    rows = ['{"id": 1, "country": "de", "at": "9999-12-31T23:59:59-05:00", "day": "0000-01-01"}']
    with opened(store.sink(columns=columns, partition_by=["country"])) as sink:
        epoch(1, rows).deliver(sink)
    assert store.table()["id"].to_pylist() == [1]
    if isinstance(store, IcebergStore):
        (task,) = store.opened().scan().plan_files()
        assert task.file.partition[0] == "de"
        assert {*task.file.lower_bounds} == {1, 2}
        assert not [name for name in store.opened().properties if "metrics" in name]


def test_a_date_that_has_no_folder_is_a_vote_of_no(store: LakeStore) -> None:
    with opened(store.sink(lambda: [("id", "bigint"), ("day", "date")], partition_by=["day"])) as sink:
        vote = epoch(1, ['{"id": 1, "day": "0000-01-01"}']).prepare(sink)
        assert "'day', which has a date outside the years 1 to 9999" in vote.reason
        epoch(2, ['{"id": 2, "day": "0001-01-01"}']).deliver(sink)
    assert ids(store) == [2]


def test_a_text_that_is_too_long_for_a_folder_is_a_vote_of_no(store: LakeStore) -> None:
    with opened(store.sink(lambda: SCHEMA, partition_by=["country"])) as sink:
        vote = epoch(1, [f'{{"id": 1, "country": "{"x" * 250}"}}']).prepare(sink)
        assert "'country', which has a text that is too long for a folder" in vote.reason
        epoch(2, [f'{{"id": 2, "country": "{"x" * 240}"}}']).deliver(sink)
    assert ids(store) == [2]


def test_two_sinks_write_to_one_table(store: LakeStore) -> None:
    with (
        opened(store.sink(lambda: SCHEMA, name="p/a")) as one,
        opened(store.sink(lambda: SCHEMA, name="p/b")) as other,
    ):
        assert epoch(1, ['{"id": 1}']).prepare(one).yes
        epoch(1, ['{"id": 2}']).deliver(other)
        one.commit(epoch(1, ['{"id": 1}']).transaction)
        epoch(2, ['{"id": 3}']).deliver(one)
    assert ids(store) == [1, 2, 3]


def test_a_worker_that_was_replaced_cannot_vote_or_commit(store: LakeStore) -> None:
    first, second = epoch(1, ['{"id": 1}']), epoch(2, ['{"id": 2}'])
    old, new = store.sink(lambda: SCHEMA), store.sink(lambda: SCHEMA)
    with opened(old):
        assert first.prepare(old).yes
        with opened(new, first.id):
            for call in (lambda: old.commit(first.transaction), lambda: second.prepare(old)):
                with pytest.raises(SinkLost, match="another process has opened this sink"):
                    call()
            second.deliver(new)
    assert ids(store) == [1, 2]


def test_a_vote_that_two_processes_commit_is_in_the_table_once(store: LakeStore) -> None:
    """The old one has looked at the record just before the other one took over."""
    first = epoch(1, ['{"id": 1}'])
    old, new = store.sink(lambda: SCHEMA), store.sink(lambda: SCHEMA)
    with opened(old):
        assert first.prepare(old).yes
        assert old._record is not None
        vote = old._record.state.in_doubt
        with opened(new, first.id):
            assert vote is not None
            assert old._table is not None
            old._table.commit(vote)
    assert ids(store) == [1]


def test_a_commit_on_top_of_a_version_that_is_no_longer_the_newest_looks_again(
    store: LakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have read the table before either has written: the slower one must not add the files again."""
    first = epoch(1, ['{"id": 1}'])
    old, new = store.sink(lambda: SCHEMA), store.sink(lambda: SCHEMA)
    with opened(old):
        epoch(0, ['{"id": 0}']).deliver(old)
        assert first.prepare(old).yes
        assert old._record is not None
        assert old._table is not None
        vote, load, loads = old._record.state.in_doubt, old._table.load, count()
        assert vote is not None
        load(old._record.state)
        with opened(new, first.id):
            monkeypatch.setattr(old._table, "load", lambda state: load(state) if next(loads) else None)
            old._table.commit(vote)
            assert next(loads) == (0 if store.kind == "parquet" else 2), "a conflict, and then a look"
    assert ids(store) == [0, 1]


def test_a_lost_record_is_not_taken_for_a_new_table(store: LakeStore) -> None:
    if store.kind == "parquet":
        pytest.skip("a directory of files does not know what is in it")
    with opened(store.sink(lambda: SCHEMA)) as sink:
        epoch(1, ['{"id": 1}']).deliver(sink)
    for key, path in store.files().items():
        if key.endswith("/record"):
            Path(str(path)).unlink()
    with opened(store.sink(lambda: SCHEMA)) as sink:
        epoch(2, ['{"id": 2}']).deliver(sink)
    assert ids(store) == [1, 2]


def test_files_of_an_epoch_that_was_killed_between_them_follow_when_the_sink_is_opened(tmp_path: Path) -> None:
    store = ParquetStore(str(tmp_path / "table"))
    rows = [f'{{"id": {number}, "country": "{number}"}}' for number in range(3)]
    first = epoch(1, rows)
    with opened(store.sink(lambda: SCHEMA, partition_by=["country"])) as sink:
        assert first.prepare(sink).yes
        assert sink._record is not None
        assert sink._record.state.in_doubt is not None
        assert sink._place is not None
        file = sink._record.state.in_doubt.files[1]
        sink._place.publish(sink._staged(file.key), file.key)
    assert len(store.rows()) == 1
    with opened(store.sink(lambda: SCHEMA, partition_by=["country"]), first.id) as sink:
        assert ids(store) == [0, 1, 2]
        sink.commit(first.transaction)
    assert ids(store) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_a_file_that_is_neither_staged_nor_published_is_missed(kind: str, tmp_path: Path) -> None:
    place: Place = DirectoryPlace(tmp_path) if kind == "directory" else BucketPlace(tmp_path.as_uri())
    with place.spool("staged") as file:
        file.write(b"rows")
        place.put(file, "staged/a")
    for _ in range(2):
        place.publish("staged/a", "a.parquet")
    place.delete(["a.parquet"])
    with pytest.raises(SinkLost, match=r"neither staged/a nor a.parquet exists"):
        place.publish("staged/a", "a.parquet")


def test_a_file_that_another_program_removes_meanwhile_does_not_stop_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"x")
    listed = places.os.scandir  # type: ignore[attr-defined]

    def scandir(path: Any) -> Any:
        found = [*listed(path)]
        (tmp_path / "b").unlink(missing_ok=True)
        return nullcontext(found)

    monkeypatch.setattr(places.os, "scandir", scandir)  # type: ignore[attr-defined]
    synced: list[str] = []
    monkeypatch.setattr(places, "_sync_file", lambda path: synced.append(Path(path).name))
    place = DirectoryPlace(tmp_path)
    place.sync("")
    assert sorted(synced) == ["a", "c"]


def test_a_table_that_the_first_format_has_written_continues(tmp_path: Path) -> None:
    """Its second epoch was voted on, and not committed."""
    table = tmp_path / "table"
    shutil.copytree(Path(__file__).parents[2] / "fixtures/lake/1", table)
    store, second = ParquetStore(str(table)), epoch(2, ['{"id": 2, "country": "fr"}'])
    assert ids(store) == [1]
    with opened(store.sink(lambda: SCHEMA, partition_by=["country"]), second.id) as sink:
        sink.commit(second.transaction)
        assert ids(store) == [1, 2]
        epoch(3, ['{"id": 3, "country": "de"}']).deliver(sink)
    assert ids(store) == [1, 2, 3]


def test_a_delta_table_whose_transaction_the_first_format_has_written_continues(tmp_path: Path) -> None:
    """Its second epoch is in the table, and the process ended before the sink's record said so."""
    shutil.copytree(Path(__file__).parents[2] / "fixtures/lake/delta-1", tmp_path / "table")
    store = DeltaStore(str(tmp_path / "table"))
    with opened(store.sink(lambda: SCHEMA)) as sink:
        sink.commit(epoch(2, ['{"id": 2, "country": "fr"}']).transaction)
        epoch(3, ['{"id": 3, "country": "de"}']).deliver(sink)
    assert ids(store) == [1, 2, 3]
    assert DeltaTable(store.place).transaction_version("penstock/p/s") == 3


def test_an_iceberg_table_whose_property_the_first_format_has_written_continues(tmp_path: Path) -> None:
    """As above. Its files name directories, so the table itself is made here."""
    stored_before = stored("iceberg-1")
    store = IcebergStore(str(tmp_path / "table"))
    with opened(store.sink(lambda: SCHEMA)) as sink:
        epoch(1, ['{"id": 1, "country": "de"}']).deliver(sink)
    with store.opened().transaction() as transaction:
        transaction.append(pa.table({"id": [2], "country": ["fr"]}))
        transaction.set_properties(stored_before["properties"])
    (record,) = Path(store.place).glob("_penstock/*/record")
    record.write_text(json.dumps(stored_before["record"]))
    with opened(store.sink(lambda: SCHEMA)) as sink:
        sink.commit(epoch(2, ['{"id": 2, "country": "fr"}']).transaction)
        epoch(3, ['{"id": 3, "country": "de"}']).deliver(sink)
    assert sorted(row["id"] for row in store.opened().scan().to_arrow().to_pylist()) == [1, 2, 3]
    assert store.opened().properties["penstock.p/s"] == "3"


def test_another_writer_of_a_delta_table_comes_first(tmp_path: Path) -> None:
    store = DeltaStore(str(tmp_path / "table"))
    first = epoch(1, ['{"id": 1}'])
    with opened(store.sink(lambda: SCHEMA)) as sink:
        assert first.prepare(sink).yes
        write_deltalake(store.place, pa.table({"id": [7], "country": ["x"]}), mode="append")
        sink.commit(first.transaction)
    table = DeltaTable(store.place)
    assert sorted(row["id"] for row in table.to_pyarrow_table().to_pylist()) == [1, 7]
    assert table.history(1)[0]["penstock.transaction"] == first.id.decode()
    assert table.transaction_version("penstock/p/s") == 1


def test_the_snapshot_of_an_iceberg_table_names_the_epoch(tmp_path: Path) -> None:
    store = IcebergStore(str(tmp_path / "table"))
    first = epoch(1, ['{"id": 1}'])
    with opened(store.sink(lambda: SCHEMA)) as sink:
        assert first.prepare(sink).yes
        other = store.opened()
        other.append(pa.table({"id": [7], "country": ["x"]}))
        sink.commit(first.transaction)
    table = store.opened()
    assert sorted(row["id"] for row in table.scan().to_arrow().to_pylist()) == [1, 7]
    summary = table.current_snapshot().summary
    assert (summary["penstock.transaction"], summary["penstock.epoch"]) == (first.id.decode(), "1")
    assert table.properties["penstock.p/s"] == "1"


def test_an_iceberg_table_must_be_where_path_says(tmp_path: Path) -> None:
    store = IcebergStore(str(tmp_path / "table"))
    with opened(store.sink(lambda: SCHEMA)) as sink:
        epoch(1, ['{"id": 1}']).deliver(sink)
    elsewhere = store.sink(lambda: SCHEMA, path=str(tmp_path / "elsewhere"))
    with pytest.raises(SinkLost, match=f"the table lake.rows is in file://{store.place}") as caught, opened(elsewhere):
        pass
    assert caught.value.hint == f"Set path: file://{store.place}"


def test_engines_write_the_location_of_an_iceberg_table_differently() -> None:
    assert {url_of(each) for each in ("/lake/t", "file:/lake/t", "file:///lake/t/")} == {"file:///lake/t"}
    assert url_of("s3a://bucket/t") == url_of("s3://bucket/t/")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ParquetOptions(path="ftp://x/y"), "ftp:// is not a supported kind of store"),
        (lambda: ParquetOptions(path="s3://me:secret@x/y"), "must not contain credentials"),
        (lambda: DeltaOptions(path="x", partition_by=("a", "a")), "names a column twice"),
        (lambda: DeltaOptions(path="x", columns="id INTT"), "expected the type"),
        (lambda: IcebergOptions(path="x", catalog="sqlite:///c.db", table="t"), "write NAMESPACE.NAME"),
        (lambda: IcebergOptions(path="az://c/t", catalog="sqlite:///c.db", table="a.t"), "pyiceberg cannot use az://"),
        *(
            (partial(IcebergOptions, path="x", catalog=catalog, table="a.t"), reason)
            for catalog, reason in (
                ("sqlite:///", "a catalogue in memory"),
                ("sqlite:///:memory:", "a catalogue in memory"),
                ("sqlite://", "is sqlite:///PATH"),
                ("sqlite+pysqlite:////srv/c.db", "is sqlite:///PATH"),
                ("sqlite://host/c.db", "is sqlite:///PATH"),
                ("sqlite:///file:/srv/c.db?uri=true", "is sqlite:///PATH"),
                ("sqlite:///c.db?timeout=1", "is sqlite:///PATH"),
                ("sqlite:///%2e%2e/c.db", "is sqlite:///PATH"),
            )
        ),
    ],
)
def test_wrong_options_are_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        make()


def test_a_table_is_only_where_connectors_may_write(tmp_path: Path) -> None:
    limited = Permissions(roots=(tmp_path,), own_store="s3://ours/store")
    Parquet.check_permitted(ParquetOptions(path=str(tmp_path / "t")), limited)
    Parquet.check_permitted(ParquetOptions(path="s3://ours/storehouse"), limited)
    for path in ("/srv/t", "file:///srv/t", "s3://ours/store", "s3://ours/store/t", "s3://ours"):
        with pytest.raises(NotPermitted):
            Parquet.check_permitted(ParquetOptions(path=path), limited)
    options = IcebergOptions(path=str(tmp_path / "t"), catalog="sqlite:////srv/c.db", table="a.t")
    with pytest.raises(NotPermitted):
        Iceberg.check_permitted(options, limited)


def test_a_sink_that_was_never_opened_can_be_closed(store: LakeStore) -> None:
    sink: LakeSink = store.sink()
    sink.close()
    with pytest.raises(SinkLost, match="it is not open"):
        sink.abort()
