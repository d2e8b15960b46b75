"""A certificate authority for tests, and contexts of servers and clients that it has certified."""

import ssl

import trustme

CA = trustme.CA()


def server_context(*, mutual: bool = False) -> ssl.SSLContext:
    """With `mutual`, only clients with a certificate are accepted."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CA.issue_cert("127.0.0.1").configure_cert(context)
    if mutual:
        CA.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(*, certificate: bool = False, name: str = "client@example.org") -> ssl.SSLContext:
    """`name`: in the client's certificate."""
    context = ssl.create_default_context(cadata=CA.cert_pem.bytes().decode())
    if certificate:
        CA.issue_cert(name).configure_cert(context)
    return context
