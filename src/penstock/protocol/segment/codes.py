"""Numbers inside messages that have a meaning of their own."""

from enum import IntEnum

VERSION_HIGH = 17
VERSION_LOW = 5
"""The versions of the public protocol that we speak; a client's range must overlap."""


class ErrorCode(IntEnum):
    """What an ErrorMessage is about. The first two are the public protocol's, the others our own."""

    UNSPECIFIED = -1
    ILLEGAL_ARGUMENT = 0
    PROTOCOL_ERROR = 7001
    QUOTA_REACHED = 7002
    DISK_FULL = 7003
    DAMAGED = 7004
    LIMIT_EXCEEDED = 7005
    CONDITION_FAILED = 7006


class AttributeUpdateKind(IntEnum):
    """How a merge changes an attribute."""

    REPLACE = 1
    REPLACE_IF_EQUALS = 4
