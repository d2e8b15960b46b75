"""`webhook-client`: a signed request for each value."""

import time
from collections.abc import Mapping
from uuid import NAMESPACE_URL, uuid4, uuid5

from penstock.connectors.api import About, ShownBy
from penstock.connectors.http_client import HttpClient, HttpClientOptions
from penstock.connectors.sockets import HeaderValue
from penstock.connectors.url_forms import UrlForm
from penstock.connectors.webhook.signatures import Signature, sign


class WebhookClientOptions(HttpClientOptions):
    """A value counts as delivered when the receiver has replied 2xx. After 408, 425, 429, 5xx or no reply it is sent
    again, with the same `Idempotency-Key` and the same id of the delivery, a new timestamp and a new signature, and not
    before the time in a Retry-After header. Any other reply refuses it. A receiver that remembers ids gets each value
    once.

    If `out` is linked, each reply that settles a request is an event: its body, with `status`, `content_type`,
    `headers` and `request` (the `source`, `stream_id` and `message_id` of the value) in its metadata.
    """

    signature: Signature | None = None
    """How requests are signed. Without it they are not."""
    content_type: HeaderValue | None = "application/json"
    """The content type of requests, unless a value's metadata has one."""


class WebhookClient(HttpClient):
    """At least once."""

    about = About(
        "webhook-client",
        "Sends values as signed webhooks, with an idempotency key; the replies are events.",
        WebhookClientOptions,
        HttpClient.about.capabilities,
        extra="http",
        example={
            "url": "https://example.org/hooks",
            "signature": {"style": "github", "secrets": ["${file:/run/secrets/webhook}"]},
        },
        url=UrlForm(credentials="Take secrets from files: ${file:PATH}."),
        shown_by=ShownBy(
            source="tests/application/test_sink_kills.py::test_every_value_is_sent_in_a_request_and_every_reply_is_an_event",
            sink="tests/application/test_web_kills.py::test_every_event_leaves_as_a_webhook_and_as_mail_and_repetitions_can_be_recognized",
        ),
    )
    options: WebhookClientOptions

    def sign(self, key: str, body: bytes) -> Mapping[str, str]:
        signature = self.options.signature
        return {} if signature is None else sign(signature, _delivery(key), body, time.time())


def _delivery(key: str) -> str:
    """The id of a delivery, which is the same for the same idempotency key: of characters that any receiver takes, and
    without the dots that separate what a signature covers.
    """
    return str(uuid5(NAMESPACE_URL, f"penstock:{key}") if key else uuid4())
