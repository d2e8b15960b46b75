"""Checks which field of a connector's events is their event time, and resolves it to what the worker needs."""

from dataclasses import dataclass

from penstock.application.config.document import Document
from penstock.application.config.lint import Item
from penstock.application.config.sections import ConnectorSection, EventTimeSection
from penstock.application.config.types import Types
from penstock.connectors.api import Capabilities
from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion
from penstock.protocol.event_time.field import EventTimeField

_OF_FIELD = ("format", "missing", "codec")
"""Keys that describe the field."""

_OF_FRAMES = ("unit", "ingest")
"""Keys that describe times in MESSAGE frames."""

NO_STREAMS = "segment"
"""A type of connector whose events do not go through the worker."""


@dataclass(frozen=True, slots=True)
class EventTimeCheck:
    """The check of one connector. `section` is None if it has mistakes of its own, `capabilities` if its type has."""

    document: Document
    types: Types
    item: Item
    section: ConnectorSection | None
    capabilities: Capabilities | None

    def check(self) -> EventTimeField | None:
        """None if event times do not come from a field, or something is wrong, which is then among the mistakes."""
        if self.section is None or self.capabilities is None:
            return None
        times = self.section.event_time
        if times.field is None:
            for key in sorted(times.model_fields_set.intersection(_OF_FIELD)):
                self._complain(
                    key, f"event_time.{key} needs a field", "Add field: the name of the field with the time."
                )
            return None
        for key in sorted(times.model_fields_set.intersection(_OF_FRAMES)):
            text = f"event_time.{key} is for times that programs send beside their data"
            self._complain(key, text, "Leave it out, or leave field out.")
        if self.capabilities.source is None or self.section.type == NO_STREAMS:
            self._complain("field", "no events enter the system through it", "Leave event_time out.")
            return None
        return self._resolved(self.section, times)

    def _resolved(self, section: ConnectorSection, times: EventTimeSection) -> EventTimeField | None:
        codec = times.codec or section.codec
        codec_map = {} if times.codec is not None else section.codec_map
        known = self.types.timed_codecs()
        if not {codec, *codec_map.values()}.intersection(known):
            shown = "it has no codec" if codec is None else f'the codec "{codec}" has no fields'
            hint = suggestion(codec or "", known) if times.codec is not None else ""
            hint = hint or f"Add codec to event_time: {', '.join(known)}."
            self._complain("field" if times.codec is None else "codec", f"event_time: {shown}", hint)
            return None
        if section.codec_config and codec in known:
            text = f"event_time: the worker finds no fields of {codec} with codec_config"
            self._complain("field", text, "Leave codec_config out, or let the connector set the times.")
            return None
        column = None
        if "csv" in (codec, *codec_map.values()):
            column = self._column(section, times)
            if column is None:
                return None
        assert times.field is not None
        return EventTimeField(
            field=times.field,
            format=times.format,
            missing=times.missing,
            codec=codec,
            codec_map=codec_map,
            column=column,
        )

    def _column(self, section: ConnectorSection, times: EventTimeSection) -> int | None:
        field = times.field or ""
        if field.isascii() and field.isdecimal():
            return int(field)
        try:
            names = [field.name.lower() for field in parse_ddl(section.schema_ or "")]
        except RequestError:  # reported with the schema
            names = []
        if field.lower() in names:
            return names.index(field.lower())
        hint = suggestion(field.lower(), names) or "Add it to the schema, or write the number of the column: field: 0."
        self._complain("field", f'event_time: there is no column "{field}" in the schema', hint)
        return None

    def _complain(self, key: str, text: str, hint: str) -> None:
        self.document.complain((*self.item.path, "event_time", key), f"{self.item.what}: {text}", hint)
