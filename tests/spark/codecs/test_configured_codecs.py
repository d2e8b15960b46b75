"""`codec_config` on the whole way: options of codecs reach the readers and the writers of Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.ports import free_port
from tests.support.running_application import running_application

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
    ],
}

APPLICATION = """
connector:
  - id: given
    type: file
    config: {{mode: read, path: given.csv}}
    interceptors: {{in: [{{type: split}}]}}
    codec: csv
    codec_config: {{delimiter: ";", quote: "'", "null": "-"}}
    schema: id BIGINT, name STRING, price DECIMAL(6,2)
  - id: sent
    type: tcp-client
    config: {{port: {port}}}
    interceptors: {{out: [{{type: length-prefixed}}]}}
    codec: avro
    codec_config: {{avro_schema: "${{file:order.avsc}}"}}
  - id: received
    type: tcp-server
    config: {{port: {port}}}
    interceptors: {{in: [{{type: length-prefixed}}]}}
    codec: avro
    codec_config: {{avro_schema: "${{file:order.avsc}}"}}
  - id: written
    type: file
    config: {{mode: write, path: written}}
    codec: csv
    codec_config: {{delimiter: "|"}}
pipeline:
  - {{id: to-avro, spark: "same.py:same"}}
  - {{id: to-csv, spark: "same.py:same"}}
binding:
  id: main
  links:
    connector/given/out: pipeline/to-avro/in
    pipeline/to-avro/out: connector/sent/in
    connector/received/out: pipeline/to-csv/in
    pipeline/to-csv/out: connector/written/in
"""

FUNCTION = """
def same(orders):
    return orders.select("id", "name", "price")
"""


def test_rows_pass_from_one_dialect_of_csv_through_avro_to_another(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.csv").write_text("1;'a;''b'';|';9.50\n2;-;0.05\nno order\n3;'-';1\n")
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "same.py").write_text(FUNCTION)
    file = tmp_path / "app.yaml"
    file.write_text(APPLICATION.format(port=free_port()))
    with running_application(file, spark) as application:
        application.until(lambda: len(_lines(tmp_path / "written")) >= 3)
    assert sorted(_lines(tmp_path / "written")) == [
        """1|"a;'b';|"|9.50""",
        "2||0.05",
        "3|-|1.00",
    ]


def _lines(folder: Path) -> list[str]:
    return [line for part in sorted(folder.glob("part-*")) for line in part.read_text().splitlines()]
