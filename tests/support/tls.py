"""A certificate authority for tests, and contexts of servers and clients that it has certified."""

import ssl
from pathlib import Path

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


def server_files(folder: Path) -> list[str]:
    """A worker's options that make it serve TLS on all ports, for 127.0.0.1."""
    cert, key = folder / "worker.pem", folder / "worker.key"
    issued = CA.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    return ["--tls-cert", str(cert), "--tls-key", str(key)]


def client_context(*, certificate: bool = False, name: str = "client@example.org") -> ssl.SSLContext:
    """`name`: in the client's certificate."""
    context = ssl.create_default_context(cadata=CA.cert_pem.bytes().decode())
    if certificate:
        CA.issue_cert(name).configure_cert(context)
    return context
