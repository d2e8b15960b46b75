"""What AWS's own tools would use for S3 and obstore does not read: profiles in the files in ~/.aws, and a CA bundle.

Keys in the environment, web identities and the roles of containers and machines are obstore's business, and come
first, second and last. Profiles that need more than keys (SSO, a role to assume, an external process) are refused.
"""

from collections.abc import Callable, Mapping
from configparser import ConfigParser, Error
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.core.errors import RequestError

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Credential

KEYS_VALID_FOR = timedelta(minutes=5)
"""How long keys from a file are used before it is read again: programs that rotate keys write them there."""

_OBSTORE_FINDS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_NEEDS_A_PROGRAM = ("sso_session", "sso_start_url", "role_arn", "credential_process", "login_session")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class AwsSettings:
    allows_http: bool = False
    config: "S3Config" = field(default_factory=dict)  # type: ignore[assignment]
    credentials: "Callable[[], S3Credential] | None" = None
    certificates: bytes | None = None


def aws_settings(environment: Mapping[str, str]) -> AwsSettings:
    """Raises RequestError if a profile is named that does not exist or cannot be used."""
    profile = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    files = _Files(environment, profile)
    config = files.config()
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    endpoint = endpoint or environment.get("AWS_ENDPOINT") or config.get("endpoint")
    needs_keys = not any(environment.get(name) for name in _OBSTORE_FINDS)
    return AwsSettings(
        allows_http=environment.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1") or _is_on_loopback(endpoint),
        config=config,
        credentials=files.provider() if needs_keys else None,
        certificates=_certificates(environment.get("AWS_CA_BUNDLE")),
    )


def _is_on_loopback(endpoint: str | None) -> bool:
    """Plain http to this machine reveals nothing to others."""
    return endpoint is not None and urlsplit(endpoint).hostname in _LOOPBACK


def _certificates(bundle: str | None) -> bytes | None:
    if not bundle:
        return None
    try:
        return Path(bundle).read_bytes()
    except OSError as error:
        raise RequestError(f"AWS_CA_BUNDLE: {bundle}: {error.strerror}") from None


class _Files:
    """The two files, which have the same content in older and newer setups."""

    def __init__(self, environment: Mapping[str, str], profile: str | None) -> None:
        self._environment = environment
        self._named = profile is not None
        self._profile = profile or "default"
        home = Path(environment.get("HOME", "~")).expanduser() / ".aws"
        self._keys = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials").expanduser()
        self._config = Path(environment.get("AWS_CONFIG_FILE") or home / "config").expanduser()

    def config(self) -> "S3Config":
        """Region and endpoint, unless the environment has them."""
        section, found = self._read(), {}
        if not (self._environment.get("AWS_REGION") or self._environment.get("AWS_DEFAULT_REGION")):
            found["region"] = section.get("region", "")
        if not any(name.startswith("AWS_ENDPOINT") for name, value in self._environment.items() if value):
            found["endpoint"] = section.get("endpoint_url", "")
        return {name: value for name, value in found.items() if value}  # type: ignore[return-value]

    def provider(self) -> "Callable[[], S3Credential] | None":
        """None if the profile has no keys and nothing asked for it."""
        section = self._read()
        if "aws_access_key_id" in section and "aws_secret_access_key" in section:
            return self._credentials
        if not self._named:
            return None
        if not section:
            raise RequestError(f"AWS_PROFILE: there is no profile {self._profile} in {self._keys} or {self._config}")
        kind = next((name for name in _NEEDS_A_PROGRAM if name in section), "no keys")
        raise RequestError(
            f"AWS_PROFILE: the profile {self._profile} has {kind}, which only AWS's own programs can use",
            'Export its keys: eval "$(aws configure export-credentials --format env)"',
        )

    def _credentials(self) -> "S3Credential":
        section = self._read()
        return {
            "access_key_id": section.get("aws_access_key_id", ""),
            "secret_access_key": section.get("aws_secret_access_key", ""),
            "token": section.get("aws_session_token"),
            "expires_at": datetime.now(UTC) + KEYS_VALID_FOR,
        }

    def _read(self) -> dict[str, str]:
        """The profile in both files; the file of keys has precedence."""
        return {
            **_section(self._config, self._profile if self._profile == "default" else f"profile {self._profile}"),
            **_section(self._keys, self._profile),
        }


def _section(file: Path, name: str) -> dict[str, str]:
    parser = ConfigParser(interpolation=None, default_section="")  # "default" is a profile like any other
    try:
        parser.read_string(file.read_text())
    except (OSError, UnicodeDecodeError):
        return {}
    except Error as error:
        raise RequestError(f"{file} is not a valid file of AWS: {error.message}") from None
    return dict(parser[name]) if name in parser else {}
