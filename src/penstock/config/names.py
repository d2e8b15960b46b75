"""How artefacts and ports may be called: segments and files are named after them."""

from typing import Annotated

from pydantic import Field

NAME_LENGTH_MAX = 100
RESERVED_PREFIX = "system"
"""Names that begin so are Penstock's own."""
PASSTHROUGH_NAME = "passthrough"
"""`passthrough.BINDING` is the built-in pipeline of a binding."""
ERR_SUFFIX = ".err"
"""`NAME.err` is the source of what came into the connector NAME and could not become an event."""
NAME_PATTERN = rf"^[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{NAME_LENGTH_MAX - 1}}}$"
PORT_PATTERN = r"^[A-Za-z0-9_-]{1,100}$"
"""Without dots: ports with one are Penstock's own, such as those of letters that are sent through again."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
PortName = Annotated[str, Field(pattern=PORT_PATTERN)]
