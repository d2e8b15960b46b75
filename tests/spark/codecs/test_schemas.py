"""A connector's schema is validated before Spark is started, with the same result as by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import RequestError
from penstock.spark.dead_letters.apply import fields_of
from tests.application.config.test_ddl import BAD, GOOD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TAKEN_BY_THE_PARSER = ("two columns", "each other")
"""Spark refuses them later, or they are our own limits."""


def test_the_same_schemas_are_accepted_as_by_spark(spark: SparkSession) -> None:
    from pyspark.errors import ParseException

    assert spark.version
    for schema in GOOD:
        assert fields_of(schema).fields, schema
    for schema, said in BAD.items():
        if not any(words in said for words in TAKEN_BY_THE_PARSER):
            with pytest.raises((ParseException, RequestError)):
                fields_of(schema)
