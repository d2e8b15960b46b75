"""Avro with a schema registry: a real server over HTTP, whose answers are scripted."""

import base64
import io
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fastavro
import pyarrow as pa
import pytest
import trustme

from penstock.core.errors import PenstockError, RequestError
from penstock.core.kinds import arrow_field
from penstock.spark.codecs.avro_codec import Registry
from penstock.spark.codecs.codec import with_options
from penstock.spark.codecs.registry import codec
from tests.spark.codecs.test_more_conformance import AVRO, ORDER, avro

LINE = {
    "type": "record",
    "name": "shop.Line",
    "fields": [{"name": "kind", "type": "Kind"}, {"name": "next", "type": ["null", "Line"], "default": None}],
}
KIND = {"type": "enum", "name": "shop.Kind", "symbols": ["GOOD", "FEE"]}
REFERS = {"name": "shop.Line", "subject": "line/1", "version": 3}


class _Schemas(BaseHTTPRequestHandler):
    """The number 7 is a schema of Avro, and 10 is one of another format. From 20 on they refer to others."""

    asked: ClassVar[list[int]] = []
    needs: ClassVar[str] = ""
    """The header without which nobody gets an answer."""
    NUMBERS: ClassVar[dict[int, Any]] = {
        7: {"schema": json.dumps(AVRO)},
        10: {"schema": 'syntax = "proto3";'},
        20: {"schema": '{"type": "array", "items": "shop.Line"}', "references": [REFERS]},
        21: {"schema": '["null", "shop.Line"]', "references": [REFERS, REFERS]},
        22: {"schema": '"shop.None"', "references": [{"name": "shop.None", "subject": "none", "version": 1}]},
        23: {"schema": '"shop.Self"', "references": [{"name": "shop.Self", "subject": "self", "version": 1}]},
    }
    VERSIONS: ClassVar[dict[str, Any]] = {
        "/subjects/line%2F1/versions/3": {
            "schema": json.dumps(LINE),
            "references": [{"name": "shop.Kind", "subject": "kind", "version": 1}],
        },
        "/subjects/kind/versions/1": {"schema": json.dumps(KIND)},
        "/subjects/self/versions/1": {
            "schema": '"shop.Self"',
            "references": [{"name": "shop.Self", "subject": "self", "version": 1}],
        },
    }

    def do_GET(self) -> None:
        if self.path.startswith("/subjects/"):
            self._answer(self.VERSIONS.get(self.path.removesuffix("?deleted=true")))
            return
        number = int(self.path.rpartition("/")[2])
        self.asked.append(number)
        self._answer(self.NUMBERS.get(number))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({"id": 7})

    def _answer(self, body: Any) -> None:
        is_allowed = self.headers.get("Authorization", "") == self.needs
        self.send_response(401 if not is_allowed else 404 if body is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(body if is_allowed else None).encode())

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def registry(handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def read_by(config: Mapping[str, Any], *values: bytes) -> tuple[list[Any], Mapping[int, str]]:
    found = codec(with_options("avro", config)).decoder(None)(pa.array(values, pa.binary()))
    return [json.loads(one) for one in found.arrays[0].to_pylist()], found.failed


def test_a_schema_of_a_registry_may_refer_to_others() -> None:
    line = {"kind": "FEE", "next": {"kind": "GOOD", "next": None}}
    with registry(_Schemas) as address:
        kind = fastavro.parse_schema(
            {"type": "array", "items": {**LINE, "fields": [{"name": "kind", "type": KIND}, LINE["fields"][1]]}}
        )
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, kind, [line])
        one = stream.getvalue()[1:-1]  # without the count of the array, and its end
        events = [b"\0\0\0\0\x14" + stream.getvalue(), b"\0\0\0\0\x15\2" + one, b"\0\0\0\0\x16", b"\0\0\0\0\x17"]
        found, failed = read_by({"registry": address}, *events)
    assert found == [[line], line]
    assert "refers to version 1 of none, which the registry does not have" in failed[2]
    assert "not a valid Avro schema" in failed[3]


EVENT = b"\0\0\0\0\7" + avro(ORDER)


@pytest.mark.parametrize("kind", ["basic", "bearer"])
def test_a_registry_gets_credentials_that_the_codec_only_refers_to(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret:x\n")
    reference = f"${{file:{secret}}}"
    own = {"registry_user": "me", "registry_password": reference} if kind == "basic" else {"registry_token": reference}
    basic = base64.b64encode(b"me:s3cret:x").decode()
    monkeypatch.setattr(_Schemas, "needs", f"Basic {basic}" if kind == "basic" else "Bearer s3cret:x")
    with registry(_Schemas) as address:
        config = {"registry": address, **own}
        assert "s3cret" not in with_options("avro", config)
        assert read_by(config, EVENT)[1] == {}
        secret.write_text("wrong")
        monkeypatch.setattr(Registry, "_schemas", {})
        with pytest.raises(PenstockError, match="answers 401: it does not accept the credentials"):
            read_by(config, EVENT)
        secret.unlink()
        with pytest.raises(PenstockError, match=r"needs credentials: .*secret cannot be read") as raised:
            read_by(config, EVENT)
        assert not isinstance(raised.value, RequestError)
        unset = {name: "${NOT_SET}" if value == reference else value for name, value in config.items()}
        with pytest.raises(PenstockError, match='NOT_SET}" is not set in the environment of this task') as raised:
            read_by(unset, EVENT)
        assert "where Spark's tasks run" in raised.value.hint


def test_credentials_do_not_follow_a_redirection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("s3cret")
    with registry(_Schemas) as other:

        class Redirecting(_Schemas):
            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("Location", f"{other}{self.path}")
                self.end_headers()

        with registry(Redirecting) as address:
            config = {"registry": address, "registry_token": f"${{file:{tmp_path}/secret}}"}
            assert read_by(config, EVENT)[1] == {}, "the other one needs that there are none"


def test_the_certificate_of_a_registry_is_checked_with_its_own_authority(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with registry(_Schemas, context) as address:
        assert read_by({"registry": address, "registry_ca": str(tmp_path / "ca.pem")}, EVENT)[1] == {}
        with pytest.raises(PenstockError, match="cannot be reached"):
            read_by({"registry": address, "registry_token": "${PATH}"}, b"\0\0\0\0\x08x")
    with pytest.raises(RequestError, match=r"none\.pem cannot be used"):
        read_by({"registry": address, "registry_ca": str(tmp_path / "none.pem")}, b"\0\0\0\0\x08x")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"registry": "https://a", "registry_token": "s3cret"}, "write a reference"),
        ({"registry": "https://a", "registry_user": "me", "registry_password": "s3cret"}, "write a reference"),
        ({"registry": "https://a", "registry_user": "me"}, "belong together"),
        ({"registry": "https://a", "registry_password": "${A}"}, "belong together"),
        ({"registry": "https://me:s3cret@a"}, "registry_user"),
        ({"registry": "http://a", "registry_token": "${A}"}, "need https"),
        ({"avro_schema": '"int"', "registry_token": "${A}"}, "add its address"),
        ({"avro_schema": '"int"', "registry_ca": "a.pem"}, "add its address"),
        (
            {"registry": "https://a", "registry_user": "a", "registry_password": "${A}", "registry_token": "${A}"},
            "exclude each other",
        ),
    ],
)
def test_credentials_of_a_registry_that_would_be_stored_or_sent_openly_are_refused(
    config: dict[str, str], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as found:
        codec(with_options("avro", config))
    assert "s3cret" not in str(found.value)


def test_avro_with_a_registry_reads_and_writes_the_number_of_the_schema() -> None:
    _Schemas.asked.clear()
    with registry(_Schemas) as address:
        config = {"registry": address, "avro_schema": json.dumps(AVRO), "subject": "o"}
        tested = codec(with_options("avro", config))
        events = [b"\0\0\0\0\7" + avro(ORDER), b"\0\0\0\0\x08" + avro(ORDER), avro(ORDER), b"\0\0\0\0\7x"]
        found = tested.decoder(None)(pa.array(events))
        assert sorted(found.failed) == [1, 2, 3]
        more = tested.decoder(None)(pa.array([b"\0\0\0\0\x0ax", b"\0\0\0\0\x08x", b"\0\0\0\0\x0ax"]))
        assert "not a valid Avro schema" in more.failed[0]
        assert sorted(more.failed) == [0, 1, 2]
        assert sorted(_Schemas.asked) == [7, 8, 10], "each is asked for once"
        schema = pa.schema([arrow_field(field) for field in tested.fields(None)])
        batch = pa.RecordBatch.from_arrays([*found.arrays], schema=schema)
        assert batch.to_pylist(maps_as_pydicts="strict") == [ORDER]
        assert tested.encoder(schema)(batch).to_pylist() == events[:1]
        alone = codec(with_options("avro", {"registry": config["registry"]}))
        assert json.loads(alone.decoder(None)(pa.array(events[:1])).arrays[0][0].as_py())["id"] == 1 << 40
    with pytest.raises(PenstockError, match="cannot be reached"):
        tested.decoder(None)(pa.array([b"\0\0\0\0\x09x"]))
