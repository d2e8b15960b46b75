"""From a deployment's words to live connectors and chains of interceptors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from penstock.connectors.api import Connector, Options
from penstock.connectors.interceptors.api import Incoming, Interceptor, OutgoingInterceptor
from penstock.connectors.interceptors.chain import IncomingChain, OutgoingChain
from penstock.connectors.registry import CONNECTORS, INTERCEPTORS, require
from penstock.connectors.secrets import resolve
from penstock.core.errors import RequestError
from penstock.protocol.api.deployment import InterceptorSpec

O = TypeVar("O", bound=Options)  # noqa: E741  options


def parse_options(model: type[O], config: Mapping[str, Any], of: str) -> O:
    """With what `${file:…}` stands for. Raises RequestError with all mistakes, never with a value, which may be one."""
    given = resolve(dict(config))
    try:
        return model.model_validate(given)
    except ValidationError as error:
        mistakes = "; ".join(_mistakes(error, has_secrets=given != config))
        raise RequestError(f"{of}: {mistakes}", f"Look at its options: penstock connectors {of}") from None


def _mistakes(error: ValidationError, *, has_secrets: bool) -> Iterator[str]:
    for one in error.errors(include_input=False, include_url=False, include_context=False):
        hidden = has_secrets and one["type"] in ("value_error", "assertion_error")  # its words may hold the value
        yield f"{'.'.join(map(str, one['loc'])) or 'config'}: {'cannot be this' if hidden else one['msg']}"


def make_connector(type_name: str, config: Mapping[str, Any]) -> Connector[Any]:
    """Raises RequestError: no such type, something is not installed, wrong options."""
    type_ = CONNECTORS.get(type_name)
    require(type_)
    return type_(parse_options(type_.about.options, config, type_name))


@dataclass(frozen=True, slots=True)
class Chains:
    """The interceptors of one connector: a fresh chain for each of its streams."""

    towards_us: tuple[Interceptor[Any], ...] = ()
    towards_peer: tuple[Interceptor[Any], ...] = ()

    def incoming(self, *, resumes: bool = False, position: int = 0) -> IncomingChain:
        """As IncomingChain."""
        return IncomingChain([_incoming(one) for one in self.towards_us], resumes=resumes, position=position)

    def outgoing(self) -> OutgoingChain:
        return OutgoingChain([_outgoing(one) for one in self.towards_peer])


def make_chains(interceptors_in: Sequence[InterceptorSpec], interceptors_out: Sequence[InterceptorSpec]) -> Chains:
    """Raises RequestError: no such interceptor, wrong options, or one that cannot stand in this direction."""
    chains = Chains(tuple(map(_interceptor, interceptors_in)), tuple(map(_interceptor, interceptors_out)))
    chains.incoming()
    chains.outgoing()
    return chains


def _interceptor(spec: InterceptorSpec) -> Interceptor[Any]:
    type_ = INTERCEPTORS.get(spec.type)
    return type_(parse_options(type_.about.options, spec.config, spec.type))


def _incoming(interceptor: Interceptor[Any]) -> Incoming:
    made = interceptor.incoming()
    if made is None:
        raise RequestError(
            f"{interceptor.about.name} cannot stand under `interceptors: in`", "It works on the way out only."
        )
    return made


def _outgoing(interceptor: Interceptor[Any]) -> OutgoingInterceptor:
    made = interceptor.outgoing()
    if made is None:
        raise RequestError(
            f"{interceptor.about.name} cannot stand under `interceptors: out`", "It works on the way in only."
        )
    return made
