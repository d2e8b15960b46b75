"""What codecs and interceptors need beside their options: packages, schemas, descriptors, patterns."""

import sys
from pathlib import Path

import pytest

from penstock.application.config import ConfigErrors, Loaded, loads
from penstock.application.config.types import KnownTypes
from penstock.spark.codecs.codec import options_of

BINDING = """
binding: {id: main, links: {connector/c/out: pipeline/system::passthrough/in}}
"""
KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
LONG = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}'


def loaded(tmp_path: Path, more: str) -> Loaded:
    text = f"connector:\n  - id: c\n    type: http-server\n    config: {{port: 8080}}\n    {more}\n{BINDING}"
    return loads(text, tmp_path / "app.yaml", KnownTypes(), {})


def mistakes(tmp_path: Path, more: str) -> str:
    with pytest.raises(ConfigErrors) as caught:
        loaded(tmp_path, more)
    return str(caught.value)


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for name in [*sys.modules, package]:
        if name == package or name.startswith(f"{package}."):
            monkeypatch.setitem(sys.modules, name, None)


def test_a_package_that_a_codec_needs_is_named_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    avro = f"codec: avro\n    codec_config: {{avro_schema: '{LONG}'}}"
    assert loaded(tmp_path, avro).notes == ()
    hide(monkeypatch, "fastavro")
    found = mistakes(tmp_path, avro)
    assert "the codec avro needs fastavro" in found
    assert "pip install 'penstock-streams[avro]'" in found
    assert "app.yaml:6:" in found


def test_a_package_that_an_interceptor_needs_is_named_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = f"codec: json\n    interceptors: {{in: [{{type: decrypt, config: {{key: {KEY}}}}}]}}"
    assert loaded(tmp_path, more).notes == ()
    hide(monkeypatch, "cryptography")
    found = mistakes(tmp_path, more)
    assert "needs cryptography" in found
    assert "pip install 'penstock-streams[encryption]'" in found


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ('codec: avro\n    codec_config: {avro_schema: \'{"type": "recor"}\'}', "not a valid Avro schema"),
        ("codec: avro\n    codec_config: {registry: 'schemas:8081'}", "not the address of a schema registry"),
        ("codec: json\n    codec_map: {application/avro: avro}", "it needs avro_schema"),
        ("codec: regex\n    codec_config: {pattern: '(?=a)'}", "not a valid pattern"),
        ("codec: grok\n    codec_config: {pattern: '%{NOPE:a}'}", "there is no grok pattern NOPE"),
        ("codec: protobuf\n    codec_config: {descriptor: DIR/bad.desc, message: a.B}", "not a valid descriptor set"),
        (
            "codec: json\n    interceptors: {in: [{type: regex-extract, config: {pattern: a, group: b}}]}",
            "no group 'b'",
        ),
    ],
)
def test_options_that_cannot_work_are_mistakes_of_the_file(tmp_path: Path, more: str, reason: str) -> None:
    (tmp_path / "bad.desc").write_bytes(b"\xff\xff")
    assert reason in mistakes(tmp_path, more.replace("DIR", str(tmp_path)))


def test_secrets_of_a_codec_stay_references_for_the_tasks(tmp_path: Path) -> None:
    """They need not exist here; other options are resolved, as before."""
    (tmp_path / "schema").write_text('"int"')
    secret = "${file:/nowhere/secret}"
    config = f"{{registry: 'https://a', registry_token: '{secret}', avro_schema: '${{file:{tmp_path}/schema}}'}}"
    found = loaded(tmp_path, f"codec: avro\n    codec_config: {config}")
    (spec,) = (one for one in found.deployment.connectors.values() if one.codec is not None)
    assert options_of(spec.codec or "") == {"registry": "https://a", "registry_token": secret, "avro_schema": '"int"'}
    assert "write a reference" in mistakes(
        tmp_path, "codec: avro\n    codec_config: {registry: 'https://a', registry_token: s3cret}"
    )


def test_what_is_only_reached_while_it_runs_is_not_contacted(tmp_path: Path) -> None:
    assert loaded(tmp_path, "codec: avro\n    codec_config: {registry: 'http://127.0.0.1:1'}").notes == ()
    more = f"codec: protobuf\n    codec_config: {{descriptor: {tmp_path}/shop.desc, message: shop.Order}}"
    (note,) = loaded(tmp_path, more).notes
    assert "shop.desc cannot be read: there is no such file; it must be where Spark's tasks run" in note
