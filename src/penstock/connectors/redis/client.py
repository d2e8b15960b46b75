"""A client of Redis with a connector's options."""

from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from penstock.connectors.redis.options import RedisOptions


def connect(options: RedisOptions) -> Redis:
    """It connects when it is used, and repeats nothing by itself."""
    password = None if options.password is None else options.password.get_secret_value()
    found: dict[str, Any] = {"db": options.db, "username": options.username or None, "password": password}
    found |= {"socket_timeout": options.timeout, "socket_connect_timeout": options.timeout}
    found |= {"protocol": 2, "retry": Retry(NoBackoff(), 0)}
    if options.unix_socket is not None:
        return Redis(unix_socket_path=str(options.unix_socket), **found)
    if options.tls is not None:
        files = {"ca_certs": options.tls.ca, "certfile": options.tls.cert, "keyfile": options.tls.key}
        found |= {"ssl": True} | {f"ssl_{name}": str(path) for name, path in files.items() if path is not None}
    return Redis(host=options.host, port=options.port, **found)
