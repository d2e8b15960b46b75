"""The settings of an S3 bucket for libraries that read the environment only: also the profiles in ~/.aws."""

import os

from penstock.bucket.aws_files import aws_settings

_NAMES = {"endpoint": "endpoint_url", "region": "region"}


def s3_settings(path: str) -> dict[str, str]:
    """`endpoint_url`, `region`, `access_key_id`, `secret_access_key`, `session_token` and `allow_http`, as far as they
    are known; empty unless the path is in S3. Raises RequestError for a profile that cannot be used.
    """
    if not path.startswith("s3://"):
        return {}
    settings = aws_settings(os.environ)
    found = {_NAMES[name]: str(value) for name, value in settings.config.items() if name in _NAMES}
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if os.environ.get(name):
            found.setdefault("endpoint_url", os.environ[name])
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        found["region"] = region
    if settings.credentials is not None:
        keys = settings.credentials()
        found |= {"access_key_id": keys["access_key_id"], "secret_access_key": keys["secret_access_key"]}
        if token := keys.get("token"):
            found["session_token"] = token
    if settings.allows_http:
        found["allow_http"] = "true"
    return found
