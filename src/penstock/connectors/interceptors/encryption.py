"""Records that only holders of a key can read, and that no one else can change: authenticated encryption.

nonce (12 bytes) · ciphertext · tag (16 bytes)
"""

import base64
import binascii
import os
from typing import Any, Literal

from pydantic import Field, field_validator

from penstock.connectors.api import Options
from penstock.connectors.interceptors.api import (
    AboutInterceptor,
    BadRecord,
    Incoming,
    Interceptor,
    OutgoingInterceptor,
    RecordStage,
    ValueStage,
)
from penstock.core.plugins import needed

_NONCE_BYTES = 12
_TAG_BYTES = 16
_KEY_BYTES = 32
_CIPHERS = {"aes-256-gcm": "AESGCM", "chacha20-poly1305": "ChaCha20Poly1305"}


def _checked_key(text: str) -> str:
    try:
        length = len(base64.b64decode(text, validate=True))
    except binascii.Error:
        raise ValueError("a key is written in base64") from None
    if length != _KEY_BYTES:
        raise ValueError(f"a key has {_KEY_BYTES} bytes; this one has {length}")
    return text


class EncryptOptions(Options):
    """A value that leaves has a random nonce of 12 bytes before it, and a tag of 16 bytes after it. Change the key
    before it has encrypted 2^32 values.
    """

    key: str
    """32 bytes in base64, from a secret: `${secret:key}`. `openssl rand -base64 32` makes one."""
    cipher: Literal["aes-256-gcm", "chacha20-poly1305"] = "aes-256-gcm"
    """Both are authenticated: what was changed on its way is a dead letter."""
    context: str = ""
    """A text that is the same on both sides, such as the name of the stream: what was encrypted with another one is not
    decrypted."""

    @field_validator("key")
    @classmethod
    def _key_has_its_size(cls, text: str) -> str:
        return _checked_key(text)


class DecryptOptions(EncryptOptions):
    """A record has its nonce of 12 bytes before it, and its tag of 16 bytes after it. One that was changed, or was
    encrypted with another key, is a dead letter. Records that were left out, repeated or reordered on their way are not
    noticed.
    """

    former_keys: tuple[str, ...] = Field(default=(), max_length=8)
    """Keys that are tried after `key`, while peers change theirs."""

    @field_validator("former_keys")
    @classmethod
    def _keys_have_their_size(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(_checked_key, texts))


def _cipher(name: str, key: str, what: str) -> Any:
    module = needed("cryptography.hazmat.primitives.ciphers.aead", what, "encryption")
    return getattr(module, _CIPHERS[name])(base64.b64decode(key))


class Encrypt(Interceptor[EncryptOptions]):
    about = AboutInterceptor("encrypt", "Encrypts each value, with its authentication.", EncryptOptions, "encryption")

    def outgoing(self) -> OutgoingInterceptor:
        options = self.options
        encrypt = _cipher(options.cipher, options.key, "the interceptor encrypt").encrypt
        context = options.context.encode()

        def encrypted(value: bytes) -> bytes:
            nonce = os.urandom(_NONCE_BYTES)
            found: bytes = encrypt(nonce, value, context)
            return nonce + found

        return ValueStage(encrypted)


class Decrypt(Interceptor[DecryptOptions]):
    about = AboutInterceptor("decrypt", "Decrypts each record, if it is authentic.", DecryptOptions, "encryption")
    needs_records = True

    def incoming(self, *, framed: bool = False) -> Incoming:  # noqa: ARG002
        options = self.options
        invalid_tag: type[Exception] = needed(
            "cryptography.exceptions", "the interceptor decrypt", "encryption"
        ).InvalidTag
        keys = (options.key, *options.former_keys)
        ciphers = [_cipher(options.cipher, key, "the interceptor decrypt") for key in keys]
        context = options.context.encode()

        def decrypted(record: bytes) -> bytes:
            if len(record) < _NONCE_BYTES + _TAG_BYTES:
                raise BadRecord(f"{len(record)} bytes are too few for a nonce and a tag")
            for cipher in ciphers:
                try:
                    found: bytes = cipher.decrypt(record[:_NONCE_BYTES], record[_NONCE_BYTES:], context)
                except invalid_tag:
                    continue
                return found
            raise BadRecord("is not authentic: it was changed, or encrypted with another key or context")

        return RecordStage(decrypted)
