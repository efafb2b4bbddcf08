"""The token of `rmgr admin add-node`, and the encryption of the credentials that it opens.

A token holds everything that a new machine has to know: whom to trust (the cluster's authority), where to ask, and a
certificate of its own, good for one hour and one question. Its private key also opens the credentials that wait in
ZooKeeper, so neither readers of ZooKeeper nor the WatchDogs ever see them.

ZooKeeper's secrets are encrypted on their way through ZooKeeper, too: with the secret of the WatchDogs, which alone hand them out.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass

import msgspec

from rmgr.errors import CoordinationUnavailable, UsageError
from rmgr.model.identity import SealedSecret
from rmgr.model.stream import UNREADABLE

_PREFIX = "rmgr1."
_NONCE_BYTES = 12


class Token(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """ca, certificate: DER. key: private scalar of the P-256 key of `certificate`, 32 bytes, the only secret in a token.

    endpoints: HOST:PORT of WatchDogs. zk, store, zookeeper_tls: for the new machine's configuration.
    """

    ca: bytes
    certificate: bytes
    key: bytes
    invitation: str
    name: str
    role: str
    endpoints: tuple[str, ...] = ()
    zk: str = ""
    store: str = ""
    zookeeper_tls: bool = False
    session_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class TlsPair:
    """PEM of a certificate, its key, and the authority that signed it."""

    ca: bytes
    certificate: bytes
    key: bytes


def encode(token: Token) -> str:
    """Returns the token as one word without spaces, about 1.3 kB."""
    return _PREFIX + base64.urlsafe_b64encode(msgspec.msgpack.encode(token)).rstrip(b"=").decode()


def decode(text: str) -> Token:
    """Reverses `encode`. Raises UsageError, which quotes nothing of the token."""
    text = "".join(text.split())
    if not text.startswith(_PREFIX):
        raise UsageError("this is not a token to join a cluster", hint="rmgr admin add-node NAME prints the whole command; copy all of it")
    body = text.removeprefix(_PREFIX)
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=Token)
    except UNREADABLE:  # errors of base64, too
        raise _damaged_error() from None


def tls_pair(token: Token) -> TlsPair:
    """Returns the certificate and key with which the holder of the token connects. Raises UsageError."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from rmgr.adapters.identity.pki import load_certificate

    try:
        key = ec.derive_private_key(int.from_bytes(token.key, "big"), ec.SECP256R1())
        ca, certificate = load_certificate(token.ca, is_pem=False), load_certificate(token.certificate, is_pem=False)
    except ValueError:
        raise _damaged_error() from None
    pem = serialization.Encoding.PEM
    return TlsPair(
        ca=ca.public_bytes(pem),
        certificate=certificate.public_bytes(pem),
        key=key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _damaged_error() -> UsageError:
    what = "the token is damaged: a part of it is missing or was changed"
    return UsageError(what, hint="copy the whole line that rmgr admin add-node printed")


# -- encryption under a secret ------------------------------------------------------------------------------------------------


def seal(secret: bytes, purpose: str, content: bytes) -> bytes:
    """Encrypts with AES-256-GCM under a key derived from `secret` for `purpose`; a random nonce precedes the result."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(_key(secret, purpose)).encrypt(nonce, content, purpose.encode())


def unseal(secret: bytes, purpose: str, sealed: bytes) -> bytes:
    """Reverses `seal`. Raises UsageError if the secret is another one or a byte was changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(_key(secret, purpose)).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose.encode())
    except (InvalidTag, ValueError):
        raise UsageError(f"what was sealed for {purpose!r} does not open: the secret is another one, or it was changed") from None


def seal_files(secret: bytes, purpose: str, files: dict[str, bytes]) -> bytes:
    """Encrypts files by name, together."""
    return seal(secret, purpose, msgspec.msgpack.encode(files))


def unseal_files(secret: bytes, purpose: str, sealed: bytes) -> dict[str, bytes]:
    """Reverses `seal_files`. Raises UsageError."""
    opened = unseal(secret, purpose, sealed)
    try:
        return msgspec.msgpack.decode(opened, type=dict[str, bytes])
    except UNREADABLE:
        raise UsageError(f"what was sealed for {purpose!r} holds no files", hint="rmgr version, here and where the WatchDog runs") from None


def _key(secret: bytes, purpose: str) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"rmgr " + purpose.encode()).derive(secret)


# -- ZooKeeper's secrets, under the secret of the WatchDogs, which alone hand them out ----------------------------------------


_PURPOSE = "zookeeper secret of {role}, generation {generation}"


def seal_secret(watchdogs: str, role: str, generation: int, secret: str) -> SealedSecret:
    """Returns the record for `/secrets/<role>`. watchdogs: the secret of their own role."""
    sealed = seal(watchdogs.encode(), _PURPOSE.format(role=role, generation=generation), secret.encode())
    return SealedSecret(generation=generation, sealed=base64.b64encode(sealed).decode())


def open_secret(watchdogs: str, role: str, record: SealedSecret) -> str:
    """Reverses `seal_secret`. Raises CoordinationUnavailable if the WatchDogs' own secret is another one."""
    purpose = _PURPOSE.format(role=role, generation=record.generation)
    try:
        return unseal(watchdogs.encode(), purpose, base64.b64decode(record.sealed)).decode()
    except UsageError as error:
        hint = "give this WatchDog the newest bundle of its role"
        raise CoordinationUnavailable(f"the secret of {role} cannot be opened: {error.message}", hint=hint) from None
