"""Who can reach a worker, and how clients authenticate: the options of `penstock worker` for it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from penstock.access.file import AccessFile, create_private_directory
from penstock.core.address import is_loopback
from penstock.core.errors import RequestError
from penstock.worker.certificates import ReloadedContext, TlsFiles
from penstock.worker.settings import WorkerSettings

_ACCESS = "Access"

HttpHostOption = Annotated[
    str, typer.Option(help="Address that the HTTP port listens on; loopback by default.", rich_help_panel=_ACCESS)
]
HttpAllowHostOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A host name by which clients reach the HTTP port; may be repeated. Requests for other names are refused.",
        rich_help_panel=_ACCESS,
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        envvar="PENSTOCK_WORKER_TOKEN_FILE",
        metavar="FILE",
        help="File with the owner's token. Default: one is generated into DATA/token.",
        rich_help_panel=_ACCESS,
    ),
]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen beyond loopback without TLS, or without a cookie; let servers of the application do so without "
        "TLS or auth. Anyone on the network can then read and send everything.",
        rich_help_panel=_ACCESS,
    ),
]
CookieFileOption = Annotated[
    Path | None,
    typer.Option(
        envvar="PENSTOCK_COOKIE_FILE",
        metavar="FILE",
        help="The file that contains the cookie, instead of --cookie.",
        rich_help_panel="Sources",
    ),
]


def read_cookie(cookie: str, file: Path | None) -> bytes:
    """From the one of the two that is given. Raises RequestError."""
    if file is None:
        return cookie.encode()
    if cookie:
        raise RequestError("the cookie is given twice", "Use --cookie-file alone.")
    try:
        found = file.read_bytes().strip()
    except OSError as error:
        raise RequestError(f"the cookie file {file} cannot be read: {error.strerror}") from None
    if not found:
        raise RequestError(f"the cookie file {file} is empty", "Write the cookie to it, and nothing else.")
    return found


def tls_files(cert: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    if cert is not None:
        return TlsFiles(cert, key, client_ca)
    if key is not None or client_ca is not None:
        raise RequestError("TLS needs a certificate", "Add --tls-cert.")
    return None


def with_access(
    settings: WorkerSettings, tls: TlsFiles | None, token_file: Path | None, directory: Path | None = None
) -> WorkerSettings:
    """The settings with TLS on all ports, and with the access that the data directory's files define, which is made
    private first. On the HTTP port a client certificate is optional: a token is as good.
    """
    if tls is not None:
        context = ReloadedContext(tls)
        settings = replace(
            settings,
            segment=replace(settings.segment, ssl=context),
            programs=replace(settings.programs, ssl=context),
            http_ssl=ReloadedContext(tls, is_client_required=False),
            certificate=tls.cert,
        )
        if settings.controller is not None:
            served = replace(settings.controller, certificate=tls.cert, key=tls.key, client_ca=tls.client_ca)
            settings = replace(settings, controller=served)
    create_private_directory(settings.data)
    access = AccessFile(directory or settings.data)
    if token_file is None:
        access.create_owner_token()
    else:
        access.use_owner_token(token_file)
    return replace(settings, access=access)


def check_exposure(settings: WorkerSettings, tls: TlsFiles | None) -> None:
    """Raises RequestError if other machines could reach a port without TLS, or the connector port without a cookie or
    certificate.
    """
    public = [
        f"{option} {host or repr(host)}"
        for option, host in (("--host", settings.programs.host), ("--http-host", settings.http_host))
        if not is_loopback(host)
    ]
    if public and tls is None:
        raise RequestError(
            f"with {' and '.join(public)} other machines can reach the worker, and there is no TLS",
            "Add --tls-cert and --tls-key, or --insecure if everyone on the network is trusted.",
        )
    is_proved = settings.programs.cookie or (tls is not None and tls.client_ca is not None)
    if not is_loopback(settings.programs.host) and not is_proved:
        raise RequestError(
            f"with {public[0]} any program on another machine could send events: there is no cookie",
            "Add --cookie-file or --tls-client-ca, or --insecure if everyone on the network is trusted.",
        )
