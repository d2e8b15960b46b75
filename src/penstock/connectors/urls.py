"""A sink by its URL: the same connector type and the same options as in YAML, on one line."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ValidationError

from penstock.connectors.api import About, Capabilities, Connector
from penstock.connectors.mistakes import complaints, dotted, is_secret, keys_of
from penstock.connectors.permissions import UNLIMITED, Permissions
from penstock.connectors.registry import CONNECTORS, SCHEMES, permitted, require
from penstock.connectors.secrets import Mask, resolve
from penstock.connectors.url_forms import UrlForm
from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion
from penstock.core.types import Guarantee

SEE_TYPES = "See: penstock sink types"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_PASSWORDS = frozenset({"password", "passwd", "pass", "pwd", "cookie", "token", "secret"})


@dataclass(frozen=True, slots=True)
class ParsedSink:
    """A connector that does nothing yet. `shown` is its URL without possible secrets."""

    connector: Connector[Any]
    shown: str

    @property
    def kind(self) -> str:
        return self.connector.about.name

    @property
    def options(self) -> Any:
        return self.connector.options

    @property
    def capabilities(self) -> Capabilities:
        return self.connector.capabilities(self.connector.options)

    @property
    def guarantee(self) -> Guarantee:
        assert self.capabilities.sink is not None, "parse_sink has seen that it has a port `in`"
        return self.capabilities.sink

    @property
    def votes(self) -> bool:
        return self.capabilities.votes

    def check_installed(self) -> None:
        """Raises NotInstalled if the type needs a package that is missing here. The worker may have it."""
        require(type(self.connector))


def _check_secrets(model: type[BaseModel], query: Iterable[tuple[str, str]]) -> None:
    """A sink's URL is stored, and shown in the status. Raises RequestError."""
    for key, value in query:
        if key in keys_of(model, ()) and is_secret(model, (key,)) and not key.endswith("_file") and "${" not in value:
            raise RequestError(
                f"anyone can see the {key} in a URL", f"Write a reference: {key}=${{file:/run/secrets/{key}}}"
            )


def parse_sink(url: str, permissions: Permissions = UNLIMITED) -> ParsedSink:
    """Raises RequestError with all mistakes, and for what the worker's `permissions` do not allow. Opens nothing; a
    relative path starts in the worker's working directory.
    """
    type_ = CONNECTORS.get(_type_name(url))
    parts, form = _split(url), type_.about.url
    if parts.password is not None:
        raise RequestError(f"{named(url)}: anyone can see a password in a URL", form.credentials)
    if parts.fragment:
        raise RequestError(f"{named(url)}: '#' ends a URL", "Write it as %23.")
    mask = Mask()
    try:
        _check_sink(type_.about.name, type_.about.capabilities)
        place = form.place(parts)
        _check_secrets(type_.about.options, place.query)
        options = _options(type_.about, place.fields, place.query, permissions, mask)
        sink = ParsedSink(permitted(type_, options, permissions, mask), place.shown or url)
        _check_sink(sink.kind, sink.capabilities, " with these options")
    except RequestError as error:
        raise RequestError(f"{named(url)}: {mask.text(str(error))}", mask.text(error.hint)) from None
    return sink


def _check_sink(kind: str, capabilities: Capabilities, where: str = "") -> None:
    if capabilities.sink is None:
        raise RequestError(f"{kind} has no port `in`{where}: it cannot be a sink", SEE_TYPES)
    if capabilities.is_linked:
        raise RequestError(
            f"{kind} sends replies to its own connections: it can only be a sink in an application",
            f"See: penstock connectors {kind}",
        )


def is_url(to: str) -> bool:
    """Whether it is a URL. Otherwise it is the name of a connector, which has no colon."""
    return ":" in to


def named(url: str) -> str:
    """The URL for an error: without user, password and query, any of which may be secret."""
    return re.sub(r"//.*@", "//…@", url.partition("?")[0])


def _type_name(url: str) -> str:
    scheme = _SCHEME.match(url)
    if scheme is None or not url.isprintable() or url != url.strip():
        raise RequestError(f"{named(url)!r} is not the URL of a sink", f"Write file:{url or 'PATH'}. {SEE_TYPES}")
    name = scheme[1].lower()
    known = {**{one: one for one in CONNECTORS.names()}, **SCHEMES}
    if name not in known:
        raise RequestError(f'unknown sink type "{scheme[1]}"', suggestion(name, known))
    return known[name]


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise RequestError(f"{named(url)} is not a valid URL: {error}", SEE_TYPES) from None


# From the query to the model.


def _options(
    about: About, fields: Mapping[str, Any], query: Sequence[tuple[str, str]], permissions: Permissions, mask: Mask
) -> Any:
    form, model = about.url, about.options
    mistakes = [*_wrong_query(form, query)]
    given: dict[str, Any] = {}
    for name, text in query:
        _put(given, name.split("."), _value(model, name.split("."), text))
    implied = {name: value for name, value in form.implied.items() if name not in given}
    try:
        options = model.model_validate(resolve({**implied, **given, **fields}, permissions=permissions, mask=mask))
    except ValidationError as error:
        mistakes += _wrong_options(form, model, error)
    if mistakes:
        raise _combined(form, mistakes)
    return options


def _wrong_query(form: UrlForm, query: Sequence[tuple[str, str]]) -> Iterator[RequestError]:
    names = [name for name, _ in query]
    for name, text in dict(query).items():
        if names.count(name) > 1:
            yield RequestError(f"{form.prefix}{name} is set twice", "Set it once.")
        elif name in form.fields:
            yield RequestError(f"{form.prefix}{name} is in the URL already", f"Write {form.written}.")
        elif not text:
            yield RequestError(f"{form.prefix}{name} has no value", "Leave it out for the default.")


def _wrong_options(form: UrlForm, model: type[BaseModel], error: ValidationError) -> Iterator[RequestError]:
    for where, text, hint in complaints(model, error, form.prefix):
        is_missing = text.endswith(" is missing")
        yield RequestError(text, f"Add {form.prefix}{dotted(where)}=…" if is_missing else hint)


def _combined(form: UrlForm, mistakes: Sequence[RequestError]) -> RequestError:
    """One error for all mistakes, with each hint once."""
    texts = "; ".join(map(str, mistakes))
    hints = dict.fromkeys(error.hint for error in mistakes if error.hint)
    if form.credentials and any(f'"{form.prefix}{name}"' in texts for name in _PASSWORDS):
        hints = {form.credentials: None}
    return RequestError(texts, " ".join(hints))


def _put(options: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """`tls.ca` is the option `ca` of `tls`."""
    *owners, name = path
    for owner in owners:
        inner = options.setdefault(owner, {})
        options = inner if isinstance(inner, dict) else {}
    options[name] = value


def _value(model: type[BaseModel], path: Sequence[str], text: str) -> Any:
    """A list if the option is one: `a,b`."""
    annotation: Any = model.model_fields[path[0]].annotation if path[0] in model.model_fields else None
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if len(path) == 1 and any(get_origin(kind) in (list, tuple) for kind in kinds):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


# What people see.


def written(about: About) -> str:
    return about.url.written or f"{about.name}:"
