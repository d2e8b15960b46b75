"""What is shown of a deployment: literal secrets are masked, references are shown as they are.

What is stored, and what a new deployment is compared with, has them: otherwise the same file would be a change.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.connectors.api import Options
from penstock.connectors.mistakes import KeyPath, is_secret
from penstock.connectors.registry import CONNECTORS, INTERCEPTORS
from penstock.connectors.secrets import has_references
from penstock.core.errors import RequestError
from penstock.protocol.api.deployment import ConnectorSpec, Deployment, InterceptorSpec

MASK = "***"
"""Printable ASCII: still a valid header, password and token, so that a driver can parse the options."""

_PUBLIC = {("auth", "names")}
"""Names in certificates are no secrets, although `auth` looks like one."""
_PATH_SUFFIX = "_file"
_URL_PASSWORD = re.compile(r"(?<=://)([^/?#\s@:]*):([^/?#\s@]+)@")
_QUERY_SECRET = re.compile(r"([?&][\w-]*(?:password|passwd|secret|token|key|signature)=)([^&#\s]+)", re.IGNORECASE)


def masked(deployment: Deployment) -> Deployment:
    return replace(deployment, connectors={name: _connector(one) for name, one in deployment.connectors.items()})


def _connector(spec: ConnectorSpec) -> ConnectorSpec:
    return replace(
        spec,
        config=_masked(spec.config, _options(CONNECTORS, spec.type), ()),
        interceptors_in=tuple(map(_interceptor, spec.interceptors_in)),
        interceptors_out=tuple(map(_interceptor, spec.interceptors_out)),
    )


def _interceptor(spec: InterceptorSpec) -> InterceptorSpec:
    return replace(spec, config=_masked(spec.config, _options(INTERCEPTORS, spec.type), ()))


def _options(types: Any, name: str) -> type[Options]:
    try:
        options: type[Options] = types.get(name).about.options
    except RequestError:  # its package was removed: the names of its options are all that is known
        return Options
    return options


def _masked(value: Any, options: type[Options], path: KeyPath) -> Any:
    if isinstance(value, Mapping):
        return {key: _masked(inner, options, (*path, str(key))) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(inner, options, path) for inner in value]
    if not isinstance(value, str):
        return value
    if is_secret(options, path) and path not in _PUBLIC and not str(path[-1]).endswith(_PATH_SUFFIX):
        return value if not value or has_references(value) else MASK
    return _without_url_secrets(value)


def _without_url_secrets(text: str) -> str:
    text = _URL_PASSWORD.sub(lambda found: found[0] if has_references(found[2]) else f"{found[1]}:{MASK}@", text)
    return _QUERY_SECRET.sub(lambda found: found[0] if has_references(found[2]) else f"{found[1]}{MASK}", text)
