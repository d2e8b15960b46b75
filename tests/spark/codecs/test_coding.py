"""Which codec applies to which event, and the list of codecs: without Spark."""

import subprocess
import sys

import pytest

from penstock.spark.codecs import about, names
from penstock.spark.codecs.codec import CODECS, Branch, Coding, branches


def test_every_codec_of_ours_is_registered_and_few_need_a_schema() -> None:
    assert names() == tuple(sorted(CODECS))
    assert [name for name in names() if about(name).needs_schema] == ["arrow", "csv", "parquet"]


def test_listing_the_names_of_codecs_does_not_import_spark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; from penstock.spark.codecs import names; print(*names())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_specific_content_types_come_before_wildcards_and_the_default_codec_last() -> None:
    coding = Coding("a", "binary", {"*/*": "string", "text/*": "string", "Text/CSV": "csv"}, "id int")
    assert [(one.content_type, one.codec) for one in branches({"a": coding})] == [
        ("text/csv", "csv"),
        ("text/*", "string"),
        ("*/*", "string"),
        ("", "binary"),
    ]


def test_sources_with_the_same_codec_share_a_branch() -> None:
    codings = {name: Coding(name, "json") for name in "abc"}
    assert branches(codings) == [Branch("json")]


def test_sources_with_different_codecs_have_their_own_branches_and_others_are_not_decoded() -> None:
    codings = {"a": Coding("a", "json"), "b": Coding("b", "csv", {}, "id int")}
    assert branches(codings) == [Branch("json", None, "a"), Branch("csv", "id int", "b"), Branch("binary")]


@pytest.mark.parametrize("name", names())
def test_each_codec_has_a_content_type(name: str) -> None:
    assert about(name).content_types
