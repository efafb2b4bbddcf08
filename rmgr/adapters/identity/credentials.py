"""A bundle of credentials: the directory that says who this process is (`[security] dir`).

    ca.crt            the cluster's authority                    tls.crt, tls.key     connections
    sign.crt/.key     signatures                                 roles.json           ZooKeeper's digest ids, public
    zookeeper.secret  `role:secret`; for users only if they are trusted with that of the gateways' role
    zookeeper.secrets all roles' secrets; WatchDogs and the admin
    watchdogs.json    where WatchDogs answered last; daemons that have met one

The admin's directory is the admin's own bundle and holds `ca.key` as well. A bundle that others could read or change is refused.

A program that only presents its certificate to a peer that verifies it reads names and dates without `cryptography` (`read_own`), which
proves nothing. The gain: 1 ms instead of 18 in a command that asks the leader, a ninth of its processor time (median of 9).
A program that signs or verifies loads the whole bundle.

The files that a cluster begins with, made by `ensure_authority`, `ensure_bundle`, `ensure_server`:

    DIR/ca.crt, ca.key, zookeeper.secrets, ...   the authority, and the admin's own bundle
    DIR/bundles/<name>/                          a bundle to be carried to where it is used
    DIR/servers/<name>/                          a certificate of a ZooKeeper or Cassandra server: server.pem (key and certificate), ca.pem
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rmgr.adapters.identity import pki
from rmgr.errors import UNREADABLE_TEXT, ConfigError, PermissionDenied, UsageError
from rmgr.model.identity import Identity, Role, parse_uri

if TYPE_CHECKING:
    from rmgr.config import SecurityConfig


_NEEDED = ("ca.crt", "tls.crt", "tls.key", "sign.crt", "sign.key", "roles.json")
#: Files that only their owner may read.
SECRET_FILES = ("tls.key", "sign.key", "ca.key", "zookeeper.secret", "zookeeper.secrets")
_ENDPOINTS = "watchdogs.json"
AUTHORITY_FILES = ("ca.crt", "ca.key", "zookeeper.secrets")
#: The command that makes a role's bundle; those of WatchDogs and gateways are made with the authority.
_MAKERS = {Role.STARTER: "rmgr admin add-node NAME", Role.SERVER: "rmgr admin add-server NAME", Role.USER: "rmgr admin add-user NAME"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A bundle in memory. Frozen; load it again after its files were renewed.

    Attributes:
        identity: the holder (with key_id). tls_pair: (certificate, key) as PEM. certificate_pem: sign.crt.
        roles: role -> ZooKeeper digest id. zookeeper_secrets: role -> secret; for WatchDogs and the admin, else empty.
        not_after_s: when the first of its certificates ends, seconds since 1970.
    """

    directory: Path
    identity: Identity
    ca_pem: bytes
    tls_pair: tuple[bytes, bytes] = field(repr=False)
    certificate_pem: bytes
    roles: Mapping[str, str]
    not_after_s: float
    zookeeper_auth: tuple[str, str] | None = field(default=None, repr=False)  #: (scheme, credential) for kazoo's add_auth
    zookeeper_secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    _key: Any = field(default=None, repr=False)

    @classmethod
    def load(cls, directory: Path | str, *, roles: tuple[Role, ...] = (), now_s: float | None = None) -> Self:
        """Reads and checks a bundle.

        Args:
            roles: permitted roles of the holder, () = any.
        Raises: ConfigError naming the file and the remedy: missing, readable by others, not valid (any more), another
            authority's, another role's.
        """
        where = Path(directory)
        _check_place(where)
        files = {name: _read(where / name) for name in _NEEDED}
        signer = _certified(where / "sign.crt", files["sign.crt"], files["ca.crt"], now_s)
        link = _certified(where / "tls.crt", files["tls.crt"], files["ca.crt"], now_s)
        who = signer.identity
        if link.identity != who:
            raise ConfigError(
                f"{where}: tls.crt is that of {_describe(link.identity)}, sign.crt that of {_describe(who)}",
                hint="files of two bundles are mixed: restore one",
            )
        if roles and who.role not in roles:
            meant = " or ".join(roles)
            raise ConfigError(
                f"{where} is the bundle of {_describe(who)}, and a {meant} needs its own",
                hint=f"set [security] dir (RMGR_SECURITY_DIR) to that of a {meant}; {_MAKERS.get(roles[0], 'rmgr admin init')} makes it",
            )
        key = _private_key(where / "sign.key", files["sign.key"], signer)
        _private_key(where / "tls.key", files["tls.key"], link)
        return cls._of(where, files, who, min(signer.not_after_s, link.not_after_s), key)

    @classmethod
    def shown(cls, directory: Path | str, *, now_s: float | None = None) -> Self:
        """Returns a bundle to present to peers that verify it: neither authority nor keys are checked before the bundle signs anything.

        Cost: 0.3 ms; `load` takes 40 ms in a new process. Raises ConfigError as `load`, now or at the first signature.
        """
        where = Path(directory)
        _check_place(where)
        files = {name: _read(where / name) for name in _NEEDED}
        now_s = time.time() if now_s is None else now_s
        try:
            signer, link = read_own(files["sign.crt"]), read_own(files["tls.crt"])
            who = parse_uri(next(uri for uri in link.uris if not uri.startswith(pki.KEY_SCHEME)))
            key_id = next(uri.removeprefix(pki.KEY_SCHEME) for uri in link.uris if uri.startswith(pki.KEY_SCHEME))
            is_usual = who.uri in signer.uris and hashlib.sha256(signer.key).hexdigest()[:32] == key_id
            is_usual = is_usual and all(item.not_before_s <= now_s < item.not_after_s for item in (signer, link))
        except (ValueError, StopIteration, UsageError):
            is_usual = False
        if not is_usual:
            return cls.load(where, now_s=now_s)  # raises with the reason
        return cls._of(where, files, replace(who, key_id=key_id), min(signer.not_after_s, link.not_after_s), _LateKey(where, key_id))

    @classmethod
    def _of(cls, where: Path, files: Mapping[str, bytes], identity: Identity, not_after_s: float, key: Any) -> Self:
        """Makes credentials from the files of a bundle whose holder is known."""
        secret = _read(where / "zookeeper.secret").decode().strip() if (where / "zookeeper.secret").exists() else ""
        secrets = where / "zookeeper.secrets"
        return cls(
            directory=where,
            identity=identity,
            ca_pem=files["ca.crt"],
            tls_pair=(files["tls.crt"], files["tls.key"]),
            certificate_pem=files["sign.crt"],
            roles=_mapping(where / "roles.json", files["roles.json"]),
            not_after_s=not_after_s,
            zookeeper_auth=("digest", secret) if secret else None,
            zookeeper_secrets=_mapping(secrets, _read(secrets)) if secrets.exists() else {},
            _key=key,
        )

    def sign(self, data: bytes) -> bytes:
        """Returns an Ed25519 signature (64 bytes) of this identity. Cost: 0.05 ms."""
        signature: bytes = self._key.sign(data)
        return signature

    def certified(self, pem: bytes) -> pki.Certified:
        """Returns the holder of another certificate of this cluster. Raises PermissionDenied."""
        return pki.verify_certificate(pem, self.ca_pem)

    def newest(self) -> Credentials:
        """Returns the holder's credentials as the files have them now. Cost: a read of 1 KiB; 10 ms after a renewal."""
        with contextlib.suppress(OSError, ConfigError):  # half written, or another holder's: the old ones stay valid until they end
            if Path(self.path("tls.crt")).read_bytes() != self.tls_pair[0]:
                fresh = Credentials.load(self.directory, roles=(self.identity.role,))
                if (fresh.ca_pem, fresh.identity.name) == (self.ca_pem, self.identity.name):
                    return fresh
        return self

    def path(self, name: str) -> str:
        """Returns the path of a file of the bundle, for libraries that want names (`ca.crt`, `tls.crt`, `tls.key`)."""
        return str(self.directory / name)

    def days_left(self) -> float:
        """Returns the days until the first certificate ends."""
        return (self.not_after_s - time.time()) / 86400.0


def from_config(security: SecurityConfig, *, roles: tuple[Role, ...] = ()) -> Credentials | None:
    """Returns the bundle that the configuration names, None for an open cluster. Raises ConfigError."""
    return Credentials.load(Path(security.dir).expanduser(), roles=roles) if security.dir else None


def endpoints_file(endpoints: Sequence[str]) -> dict[str, bytes]:
    """Returns the file, by name, in which a bundle keeps the endpoints where WatchDogs answered."""
    return {_ENDPOINTS: (json.dumps(list(endpoints)) + "\n").encode()}


def known_endpoints(credentials: Credentials) -> tuple[str, ...]:
    """Returns the endpoints where WatchDogs last answered the holder of the bundle."""
    try:
        return tuple(str(endpoint) for endpoint in json.loads((credentials.directory / _ENDPOINTS).read_bytes()))
    except (OSError, *UNREADABLE_TEXT, TypeError):
        return ()


def load_ca(directory: Path | str) -> pki.Authority:
    """Returns the authority in an admin's directory. Raises ConfigError."""
    where = Path(directory)
    if not (where / "ca.key").exists():
        raise ConfigError(
            f"{where} is not the directory of a cluster's authority: there is no ca.key", hint="make one: rmgr admin init --dir DIR"
        )
    _check_place(where)
    cert, key, secrets = (_read(where / name) for name in AUTHORITY_FILES)
    try:
        cluster = pki.cluster_of(cert)
    except ValueError as error:
        raise ConfigError(f"{where / 'ca.crt'} is not a certificate: {error}", hint="restore it from a backup") from None
    return pki.Authority(cluster=cluster, cert_pem=cert, key_pem=key, secrets=_mapping(where / "zookeeper.secrets", secrets))


def write_files(directory: Path | str, files: Mapping[str, bytes], *, replace: bool = False) -> Path:
    """Writes a bundle or an authority: directory 0700, files 0600; a new directory as a whole or not at all, otherwise file by file.

    Raises: ConfigError if a file exists and `replace` is not given; then nothing was written.
    """
    where = Path(directory)
    there = [name for name in files if (where / name).exists()]
    if there and not replace:
        raise ConfigError(f"{where / there[0]} exists already and is not overwritten", hint="choose another place for it, or remove it")
    if not where.exists():
        import shutil
        import tempfile

        try:
            where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = Path(tempfile.mkdtemp(prefix=f".{where.name}.", dir=where.parent))  # 0700
        except OSError as error:
            raise ConfigError(f"{where} cannot be made: {error.strerror}", hint="choose another place for it") from None
        try:
            _write_each(draft, files)
            draft.rename(where)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return where
    where.chmod(0o700)
    _write_each(where, files)
    return where


class _LateKey:
    """The key of a bundle that was only presented so far: loaded, and the bundle verified, at the first signature."""

    def __init__(self, directory: Path, key_id: str) -> None:
        self._directory = directory
        self._key_id = key_id
        self._key: Any = None

    def sign(self, data: bytes) -> bytes:
        if self._key is None:
            self._key = self._load()
        signature: bytes = self._key.sign(data)
        return signature

    def _load(self) -> Any:
        """Makes the checks of `Credentials.load` that matter for a signature, without X.509's library (20 ms)."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_private_key

        with contextlib.suppress(ValueError, TypeError, AttributeError, InvalidSignature):
            key: Any = load_pem_private_key(_read(self._directory / "sign.key"), password=None)
            authority: Any = load_der_public_key(read_own(_read(self._directory / "ca.crt")).key_info)
            for name in ("sign.crt", "tls.crt"):
                said = read_own(_read(self._directory / name))
                authority.verify(said.signature, said.signed, ECDSA(SHA256()))
            if pki.key_id_of(key.public_key()) == self._key_id:
                return key
        return Credentials.load(self._directory)  # raises with the reason


# -- inside ----------------------------------------------------------------------------------------------------------------


def _write_each(where: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        draft = where / f".{name}.new"
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as sink:
            sink.write(data)
            sink.flush()
            os.fsync(sink.fileno())
        draft.replace(where / name)


def _check_place(where: Path) -> None:
    if not where.is_dir():
        raise ConfigError(
            f"there is no bundle of credentials in {where}",
            hint="ask the cluster's admin for one (rmgr admin add-user NAME, add-node NAME), or make a cluster's: rmgr admin init",
        )
    _check_owner(where, 0o077, "700")


def _check_owner(path: Path, forbidden: int, mode: str) -> None:
    """Checks that the file is ours (or root's) and grants others none of the `forbidden` rights."""
    found = path.stat()
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{path} belongs to user {found.st_uid}, not to this one ({os.geteuid()})", hint=f"chown -R $(id -u) {path}")
    if found.st_mode & forbidden:
        raise ConfigError(f"{path} is open to others (mode {found.st_mode & 0o777:o})", hint=f"chmod {mode} {path}")


def _read(path: Path) -> bytes:
    try:
        secret = path.name in SECRET_FILES
        _check_owner(path, 0o077 if secret else 0o022, "600" if secret else "go-w")
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{path} is missing", hint="restore the bundle, or ask the cluster's admin for a new one (rmgr admin add-user, add-node)"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=f"chown -R $(id -u) {path.parent}") from None


def _certified(path: Path, pem: bytes, ca_pem: bytes, now_s: float | None) -> pki.Certified:
    try:
        return pki.verify_certificate(pem, ca_pem, now_s)
    except PermissionDenied as error:
        hint = "ask the cluster's admin for a new bundle: rmgr admin rotate tls, or rmgr admin add-user NAME"
        if "valid only from" in error.message:
            hint = "set this machine's clock: timedatectl"
        raise ConfigError(f"{path}: {error.message}", hint=hint) from None


def _private_key(path: Path, pem: bytes, certified: pki.Certified) -> Any:
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not a private key: {error}", hint="restore the bundle") from None
    if key.public_key() != certified.public_key:
        raise ConfigError(f"{path} does not belong to {path.with_suffix('.crt').name}", hint="files of two bundles are mixed: restore one")
    return key


def _mapping(path: Path, data: bytes) -> dict[str, str]:
    try:
        document = json.loads(data)
        return {str(key): str(value) for key, value in document.items()}
    except (*UNREADABLE_TEXT, AttributeError):
        raise ConfigError(f"{path} is not readable JSON", hint="restore the bundle") from None


def _describe(who: Identity) -> str:
    return f"{who.role} {who.name} of {who.cluster}"


# -- the process's own certificate ---------------------------------------------------------------------------------------------


_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _OCTETS, _OID, _UTC, _GENERALIZED = 0x30, 0x04, 0x06, 0x17, 0x18
_VERSION, _EXTENSIONS, _URI = 0xA0, 0xA3, 0x86
_SUBJECT_ALT_NAME = bytes((0x55, 0x1D, 0x11))
#: Position of the dates among a certificate's fields: after serial number, algorithm and issuer.
_BEFORE_DATES = 3
#: Position of the public key: after the dates and the holder's name.
_BEFORE_KEY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """uris: URIs among the holder's names. key: the raw public key. not_before_s, not_after_s: seconds since 1970.

    key_info: the public key in the form that libraries load (DER). signed, signature: the signed part, and the authority's signature.
    """

    uris: tuple[str, ...]
    key: bytes
    not_before_s: float
    not_after_s: float
    key_info: bytes
    signed: bytes
    signature: bytes


def read_own(pem: bytes) -> Said:
    """Parses the first certificate of `pem` (X.509 in DER, RFC 5280 section 4.1). Raises ValueError if there is none. Cost: 0.05 ms."""
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("there is no certificate in it")
    try:
        return _parts_of(base64.b64decode(found[1]))
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not a certificate: {error}") from None


def _parts_of(der: bytes) -> Said:
    certificate = _items(_items(der)[0][1])
    body = _items(certificate[0][1])
    fields = body[1:] if body[0][0] == _VERSION else body
    before, after = (_time(tag, value) for tag, value in _items(fields[_BEFORE_DATES][1])[:2])
    extensions = next((value for tag, value in fields if tag == _EXTENSIONS), b"")
    uris: list[str] = []
    for _, extension in _items(_items(extensions)[0][1]) if extensions else ():
        parts = _items(extension)
        if parts[0] == (_OID, _SUBJECT_ALT_NAME) and parts[-1][0] == _OCTETS:
            uris += [name.decode() for tag, name in _items(_items(parts[-1][1])[0][1]) if tag == _URI]
    return Said(
        uris=tuple(uris),
        key=_items(fields[_BEFORE_KEY][1])[1][1][1:],  # a bit string: its first byte counts the unused bits
        not_before_s=before,
        not_after_s=after,
        key_info=_encode(*fields[_BEFORE_KEY]),
        signed=_encode(*certificate[0]),
        signature=certificate[2][1][1:],
    )


def _encode(tag: int, content: bytes) -> bytes:
    """Encodes a value as it is in the certificate: DER has exactly one form for each."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _items(data: bytes) -> list[tuple[int, bytes]]:
    """Returns (tag, content) of consecutive values. Raises IndexError if they end too early."""
    found = []
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise IndexError("it is cut off")
        found.append((tag, data[at : at + length]))
        at += length
    return found


def _time(tag: int, value: bytes) -> float:
    text = value.decode("ascii")
    if tag == _UTC:  # years of two digits, RFC 5280 section 4.1.2.5.1
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif tag != _GENERALIZED:
        raise ValueError("a date was expected")
    year, month, day, hour, minute, second = (int(text[at:end]) for at, end in ((0, 4), (4, 6), (6, 8), (8, 10), (10, 12), (12, 14)))
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()


# -- TLS of sockets that are not gRPC's: both ends present certificates of the cluster's authority; no other is trusted --------


def context_of(credentials: Credentials, protocol: int) -> ssl.SSLContext:
    """Returns a context that presents this bundle's certificate and demands one of the same authority. Raises ConfigError."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=credentials.ca_pem.decode())
        context.load_cert_chain(credentials.path("tls.crt"), credentials.path("tls.key"))
    except OSError as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"{credentials.directory}: {error}", hint="[security] dir must name a complete bundle: rmgr doctor") from error
    return context


class ServerContext:
    """Gives a server its current certificate, so that a renewed one needs no restart. For one thread."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._shown: tuple[int, ssl.SSLContext] | None = None

    def current(self) -> ssl.SSLContext:
        """Returns the current context. Cost: one stat, and 1 ms if the file has changed. Raises OSError, ConfigError."""
        stamp = Path(self._credentials.path("tls.crt")).stat().st_mtime_ns
        if self._shown is None or self._shown[0] != stamp:
            self._shown = stamp, context_of(self._credentials, ssl.PROTOCOL_TLS_SERVER)
        return self._shown[1]


def peer_of(sock: Any) -> Identity:
    """Returns the identity in the certificate that the other end has presented. Raises PermissionDenied."""
    shown: Iterable[tuple[str, str]] = (sock.getpeercert() or {}).get("subjectAltName", ())
    return pki.identity_of([name for kind, name in shown if kind == "URI"])


# -- the bundles that a cluster begins with: each made once, and never overwritten ---------------------------------------------


#: Names by which every machine reaches itself; bundles for one machine carry them as well.
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def ensure_authority(directory: Path, *, cluster: str = "") -> tuple[pki.Authority, bool]:
    """Returns the authority in `directory`, and whether it was made just now because there was none.

    Args: cluster: name of the trust domain, "" = a random one, or the existing one.
    Raises: ConfigError if `directory` has another cluster's authority, or a bundle without an authority.
    """
    if (directory / "ca.key").exists():
        found = load_ca(directory)
        if cluster and found.cluster != cluster:
            raise ConfigError(f"{directory} is the authority of the cluster {found.cluster}, not of {cluster}", hint="choose another --dir")
        return found, False
    if (directory / "ca.crt").exists():
        raise ConfigError(f"{directory} holds a bundle of credentials, but no authority", hint="choose another --dir")
    made = pki.make_ca(cluster)
    write_files(directory, pki.issue(made, "admin", Role.ADMIN) | made.files())
    return made, True


def ensure_bundle(
    authority: pki.Authority, directory: Path, name: str, role: Role, *, hosts: Sequence[str] = (), renew: bool = False
) -> bool:
    """Makes a bundle in `directory` unless there is one; returns whether it was made.

    Args: renew: replace one that cannot be used any more (expired, another authority's).
    Raises: ConfigError if the existing one is not this cluster's, or cannot be used.
    """
    if (directory / "ca.crt").exists():
        try:
            found = Credentials.load(directory)
            mine = found.ca_pem == authority.cert_pem
            if not mine and not renew:
                raise ConfigError(
                    f"{directory} holds credentials of another cluster ({pki.cluster_of(found.ca_pem)})",
                    hint="they are left alone: move them away, or name another place",
                )
            if mine and not (renew and found.days_left() < 1):
                return False
        except ConfigError:
            if not renew:
                raise
    write_files(directory, pki.issue(authority, name, role, hosts=hosts), replace=renew)
    return True


def ensure_server(authority: pki.Authority, directory: Path, name: str, hosts: Sequence[str]) -> bool:
    """Makes a certificate for a foreign server in `directory` unless there is one; returns whether it was made."""
    if (directory / "server.pem").exists():
        return False
    certificate, key = pki.issue_server(authority, name, tuple(dict.fromkeys((*hosts, *LOCAL_HOSTS))))
    write_files(directory, {"server.pem": key + certificate, "ca.pem": authority.cert_pem})
    return True
