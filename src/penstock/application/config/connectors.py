"""Checks a connector of the file for one instance, and creates its part of the deployment."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from penstock.application.config.document import Document
from penstock.application.config.event_times import EventTimeCheck
from penstock.application.config.lint import Item, validated
from penstock.application.config.references import KeyPath, UnreadFile
from penstock.application.config.sections import ConnectorSection, InterceptorSection
from penstock.application.config.types import Types
from penstock.connectors.api import Capabilities
from penstock.connectors.registry import types_of_every_worker
from penstock.connectors.secrets import NoSecret, UnsetVariable
from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion
from penstock.protocol.api.deployment import BreakerSpec, ConnectorSpec, InterceptorSpec, ReconnectSpec
from penstock.spark.codecs.api import NotHere
from penstock.spark.codecs.codec import CONTENT_TYPE, CONTENT_TYPE_HINT, with_options


@dataclass(frozen=True, slots=True)
class CheckedConnector:
    spec: ConnectorSpec | None
    """None: it has mistakes."""
    capabilities: Capabilities
    """The capabilities with its options; if those have mistakes, everything that its type can do."""


class ConnectorCheck:
    """The check of one connector with one instance's variables filled in: `value`."""

    def __init__(self, document: Document, types: Types, item: Item, value: Mapping[str, Any]) -> None:
        self._document = document
        self._types = types
        self._item = item
        self._value = value

    def check(self, name: str, instance: str) -> CheckedConnector | None:
        """None if its type is not known because of a mistake. Every key is checked, whatever the others are."""
        section = validated(self._document, ConnectorSection, self._value, self._item.path, (), self._item.what)
        capabilities = self._capabilities()
        for way in ("in", "out"):
            self._check_interceptors(way, capabilities)
        self._check_codecs(capabilities)
        self._check_columns()
        self._check_idle_rule(section)
        self._check_partitions(section, capabilities)
        times = EventTimeCheck(self._document, self._types, self._item, section, capabilities).check()
        if capabilities is None:
            return None
        spec = None if section is None else replace(_spec(section, name, instance), event_time=times)
        if spec is not None and spec.codec is not None and section is not None and section.codec_config:
            config = self._codec_config(spec.codec, section.codec_config, [])
            spec = replace(spec, codec=with_options(spec.codec, config))
        return CheckedConnector(spec, capabilities)

    def check_schema(self) -> None:
        """For a connector whose port `out` is linked."""
        if self._value.get("schema") is not None:
            return
        for key, codec in self._codecs().items():
            if codec in self._types.codecs() and self._types.needs_schema(codec):
                text = f"{self._item.what}: the codec {codec} needs a schema"
                self._document.complain((*self._item.path, *key), text, "Add schema: id BIGINT, name STRING.")

    def _check_columns(self) -> None:
        schema = self._value.get("schema")
        if not isinstance(schema, str) or not schema or "${file:" in schema:
            return
        try:
            parse_ddl(schema)
        except RequestError as error:
            hint = error.hint or "Write it like id BIGINT, name STRING."
            self._document.complain((*self._item.path, "schema"), f"{self._item.what}: schema: {error}", hint)

    def _check_idle_rule(self, section: ConnectorSection | None) -> None:
        if section is None or section.watermark.when_all_idle != "clock" or section.watermark.idle_timeout is not None:
            return
        path = (*self._item.path, "watermark", "when_all_idle")
        text = f"{self._item.what}: when_all_idle: clock needs an idle_timeout: without one no stream is ever idle"
        self._document.complain(path, text, "Add idle_timeout: 1m, or leave when_all_idle out.")

    def _check_partitions(self, section: ConnectorSection | None, capabilities: Capabilities | None) -> None:
        if section is None or capabilities is None:
            return
        if section.listen == "every-worker":
            self._check_listen(section, capabilities)
            return
        if section.partitions == 1 or capabilities.partitions:
            return
        text = f"{self._item.what}: partitions: {section.partitions} is not possible: one worker receives its events"
        hint = "Leave partitions out. Sources of the type connector-protocol can have several."
        if capabilities.every_worker:
            hint = "Leave partitions out, or add listen: every-worker."
        self._document.complain((*self._item.path, "partitions"), text, hint)

    def _check_listen(self, section: ConnectorSection, capabilities: Capabilities) -> None:
        what, path = f"{self._item.what}: listen: every-worker", (*self._item.path, "listen")
        if not capabilities.every_worker:
            text = f"{what} is not possible: one worker runs a connector of the type {section.type}"
            self._document.complain(path, text, f"Leave listen out. Possible for: {types_of_every_worker()}.")
        elif section.partitions == 1:
            self._document.complain(
                path, f"{what} needs partitions", "Add partitions: the number of shards that listen, on all workers."
            )

    def _capabilities(self) -> Capabilities | None:
        kind = self._value.get("type")
        if not isinstance(kind, str):
            return None
        path = (*self._item.path, "type")
        if kind not in self._types.names():
            self._unknown(path, "connector type", kind, self._types.names())
            return None
        try:
            about = self._types.about(kind)
            options = self._options(about.options, self._value, self._item.path)
            return about.capabilities if options is None else self._types.capabilities(kind, options)
        except RequestError as error:
            self._document.complain(path, f"{self._item.what}: {error}", error.hint)
            return None

    def _unknown(self, path: KeyPath, what: str, name: str, known: Collection[str]) -> None:
        if path not in self._document.unset:
            hint = suggestion(name, known) if path not in self._document.written else f"Available: {', '.join(known)}."
            self._document.complain(path, f'unknown {what} "{self._document.shown(path, name)}"', hint)

    def _options(self, model: type[BaseModel], value: Mapping[str, Any], path: KeyPath) -> BaseModel | None:
        """Parses `config` with its references resolved here, only to validate it."""
        config = value.get("config", {})
        if not isinstance(config, dict):
            return None  # the section's own model has reported it
        where = (*path, "config")
        unreadable: list[KeyPath] = []
        resolved = self._resolved(config, where, unreadable)
        if unreadable:
            return None
        within = where[len(self._item.path) :]
        return validated(self._document, model, resolved, self._item.path, within, self._item.what)

    def _resolved(self, config: Any, path: KeyPath, unreadable: list[KeyPath]) -> Any:
        """An unset variable stays as it is: it was reported where it is written, and is not reported again. So does a
        file that is not read here, if the worker can read it. Adds the places of files that cannot be read.
        """
        if isinstance(config, dict):
            return {key: self._resolved(each, (*path, key), unreadable) for key, each in config.items()}
        if isinstance(config, list):
            return [self._resolved(each, (*path, index), unreadable) for index, each in enumerate(config)]
        if not isinstance(config, str) or path in self._document.unset:
            return config
        try:
            return self._document.references.resolve(config)
        except UnsetVariable:
            self._document.unset.add(path)
        except UnreadFile as error:
            if "codec_config" in path:
                self._document.complain(path, str(error), error.hint)
                unreadable.append(path)
            self._document.unset.add(path)
        except NoSecret as error:
            self._document.complain(path, str(error), error.hint)
            unreadable.append(path)
        return config

    def _check_interceptors(self, way: str, capabilities: Capabilities | None) -> None:
        given = self._value.get("interceptors")
        chain = given.get(way) if isinstance(given, dict) else None
        if chain and capabilities is not None and way not in capabilities.interceptors:
            path = (*self._item.path, "interceptors", way)
            text = f'{self._item.what}: interceptors cannot be used under "{way}" of this connector'
            self._document.complain(path, text, "With these options its events pass no interceptors: leave them out.")
        for index, each in enumerate(chain if isinstance(chain, list) else []):
            if isinstance(each, dict) and isinstance(each.get("type"), str):
                self._check_interceptor(way, each, (*self._item.path, "interceptors", way, index))

    def _check_interceptor(self, way: str, value: Mapping[str, Any], path: KeyPath) -> None:
        kind = value["type"]
        known = self._types.interceptors()
        if kind not in known:
            self._unknown((*path, "type"), "interceptor", kind, known)
            return
        options = self._options(self._types.interceptor(kind).options, value, path)
        if options is None:
            return
        try:
            self._types.check_interceptor(kind, options)
        except RequestError as error:
            self._document.complain((*path, "type"), f'the interceptor "{kind}": {error}', error.hint)
            return
        if way not in (ways := self._types.directions(kind, options)):
            hint = f"It can be used under: {', '.join(sorted(ways))}."
            self._document.complain((*path, "type"), f'the interceptor "{kind}" cannot be used under "{way}"', hint)

    def _codecs(self) -> dict[KeyPath, str]:
        """The codecs, by the key that names each."""
        found: dict[KeyPath, Any] = {("codec",): self._value.get("codec")}
        chosen = self._value.get("codec_map")
        found |= {("codec_map", key): codec for key, codec in (chosen if isinstance(chosen, dict) else {}).items()}
        return {key: codec for key, codec in found.items() if isinstance(codec, str)}

    def _check_codecs(self, capabilities: Capabilities | None) -> None:
        known = self._types.codecs()
        for key, codec in self._codecs().items():
            if codec not in known:
                self._unknown((*self._item.path, *key), "codec", codec, known)
            if len(key) > 1 and not CONTENT_TYPE.fullmatch(str(key[1])):
                text = f'"{key[1]}" is not a valid content type'
                self._document.complain((*self._item.path, *key), text, CONTENT_TYPE_HINT, key=True)
        self._check_codec_config(known)
        for key, codec in self._codecs().items():
            if len(key) > 1 and codec in known:
                self._check_codec(codec, key)
        if capabilities is not None and capabilities.has_codec and self._value.get("codec") is None:
            hint = f"Add codec: {', '.join(sorted(known))}."
            self._document.complain((*self._item.path, "codec"), f"{self._item.what} has no codec", hint)

    def _check_codec_config(self, known: Collection[str]) -> None:
        codec, config = self._value.get("codec"), self._value.get("codec_config", {})
        if not isinstance(codec, str) or codec not in known or not isinstance(config, dict):
            return  # reported elsewhere
        model, where = self._types.codec_options(codec), ("codec_config",)
        if model is None and config:
            text = f"{self._item.what}: the codec {codec} has no options"
            self._document.complain((*self._item.path, *where), text, "Leave codec_config out.")
        if model is None:
            return
        unreadable: list[KeyPath] = []
        resolved = self._codec_config(codec, config, unreadable)
        if unreadable:
            return
        if validated(self._document, model, resolved, self._item.path, where, self._item.what) is not None:
            self._check_codec(with_options(codec, resolved), where if config else ("codec",))

    def _codec_config(self, codec: str, config: Mapping[str, Any], unreadable: list[KeyPath]) -> dict[str, Any]:
        """With references resolved, but for those of secrets: Spark's tasks resolve them where they run."""
        late = getattr(self._types.codec_options(codec), "resolved_by_tasks", ())
        path = (*self._item.path, "codec_config")
        return {
            key: each if key in late else self._resolved(each, (*path, key), unreadable) for key, each in config.items()
        }

    def _check_codec(self, codec: str, key: KeyPath) -> None:
        """Its packages, and what its options refer to."""
        try:
            self._types.check_codec(codec)
        except NotHere as error:
            self._document.notes.append(f"{self._item.what}: {error}; it must be where Spark's tasks run")
        except RequestError as error:
            self._document.complain((*self._item.path, *key), f"{self._item.what}: {error}", error.hint)


def _spec(section: ConnectorSection, name: str, instance: str) -> ConnectorSpec:
    return ConnectorSpec(
        name=name,
        id=section.id,
        instance=instance,
        type=section.type,
        config=section.config,
        codec=section.codec,
        codec_map=section.codec_map,
        schema=section.schema_,
        interceptors_in=tuple(map(_interceptor, section.interceptors.in_)),
        interceptors_out=tuple(map(_interceptor, section.interceptors.out)),
        reconnect=_reconnect(section),
        breaker=_breaker(section),
        segments=section.segments,
        partitions=section.partitions,
        listen=section.listen,
        quota_bytes=section.quota,
        window_bytes=section.window,
        ack=section.ack,
        max_disorder_us=round(section.watermark.max_disorder * 1_000_000),
        idle_timeout_seconds=section.watermark.idle_timeout,
        when_all_idle=section.watermark.when_all_idle,
        event_time_unit=section.event_time.unit,
        event_time_ingest=section.event_time.ingest,
    )


def _interceptor(section: InterceptorSection) -> InterceptorSpec:
    return InterceptorSpec(type=section.type, config=section.config)


def _reconnect(section: ConnectorSection) -> ReconnectSpec:
    given = section.reconnect
    return ReconnectSpec(first_seconds=given.first, factor=given.factor, max_seconds=given.max, tries=given.tries)


def _breaker(section: ConnectorSection) -> BreakerSpec:
    given = section.breaker
    return BreakerSpec(
        failing_streams=given.failing_streams,
        within_seconds=given.within,
        probe_after_seconds=given.probe_after,
        probe_after_seconds_max=given.probe_after_max,
        outbox_bytes_max=given.outbox_max,
    )
