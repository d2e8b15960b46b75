"""The background tasks of a process, for tests that kill them."""

import asyncio

from penstock.core.supervisor import Supervisor


def task_named(supervisor: Supervisor, name: str) -> "asyncio.Task[None]":
    """What runs now for the oldest of this name."""
    return next(one for one in supervisor._tasks if one.name == name)._task
