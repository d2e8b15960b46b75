"""Connectors: one file each, and the small interface that they are written against (`api.py`)."""

from penstock.connectors.api import (
    About,
    Capabilities,
    Connector,
    Host,
    Lost,
    Options,
    Outgoing,
    Pause,
    Port,
    Stream,
    StreamGone,
    StreamLost,
    StreamRef,
)
from penstock.core.types import Guarantee

__all__ = [
    "About",
    "Capabilities",
    "Connector",
    "Guarantee",
    "Host",
    "Lost",
    "Options",
    "Outgoing",
    "Pause",
    "Port",
    "Stream",
    "StreamGone",
    "StreamLost",
    "StreamRef",
]
