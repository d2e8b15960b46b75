"""A real mail server, which records its messages and refuses them as scripted."""

import email
import ssl
from collections.abc import Mapping
from email.message import EmailMessage
from email.policy import default
from typing import Any, Self

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from tests.support.ports import free_port


class _Controller(Controller):
    """Knows its connections."""

    def factory(self) -> Any:
        made = super().factory()  # type: ignore[no-untyped-call]
        self.connections = [*getattr(self, "connections", []), made]
        return made

    def stop(self, no_assert: bool = False) -> None:
        """With all connections, which it would leave open."""
        for connection in getattr(self, "connections", []):
            if connection.transport is not None:
                self.loop.call_soon_threadsafe(connection.transport.abort)
        super().stop(no_assert)


class MailServer:
    def __init__(
        self,
        context: ssl.SSLContext | None = None,
        *,
        is_tls: bool = False,
        login: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> None:
        self.port = port or free_port()
        self.messages: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        """Of each message."""
        self.answers: list[str | None] = []
        """To the next messages; None: it is accepted."""
        self.answers_to: dict[str, list[str]] = {}
        """To the next mentions of these recipients; afterwards they are accepted."""
        self._login = login or {}
        options: dict[str, Any] = {"enable_SMTPUTF8": False}
        if context is not None:
            options |= {"ssl_context": context} if is_tls else {"tls_context": context, "require_starttls": True}
        if login is not None:
            options |= {"authenticator": self._authenticate, "auth_required": True, "auth_require_tls": not is_tls}
        self._controller = _Controller(self, hostname="127.0.0.1", port=self.port, **options)

    async def handle_RCPT(self, _: Any, __: Any, envelope: Any, address: str, ___: Any) -> str:  # noqa: N802
        if self.answers_to.get(address):
            return self.answers_to[address].pop(0)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _: Any, __: Any, envelope: Any) -> str:  # noqa: N802
        answer = self.answers.pop(0) if self.answers else None
        if answer is None:
            data = envelope.content.replace(b"\r\n", b"\n")
            self.messages.append(email.message_from_bytes(data, policy=default))
            self.recipients.append([*envelope.rcpt_tos])
        return answer or "250 OK"

    def _authenticate(self, _: Any, __: Any, ___: Any, ____: str, given: LoginPassword) -> AuthResult:
        is_right = given.login.decode() == self._login["user"] and given.password.decode() == self._login["password"]
        return AuthResult(success=is_right, handled=False)

    def __enter__(self) -> Self:
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()
