"""Certificates: the cluster's authority, the certificates it issues, and the check whether a certificate is one of its own.

An identity has two key pairs, because gRPC's TLS does not speak Ed25519: `tls.crt`/`tls.key` (ECDSA P-256) for
connections and `sign.crt`/`sign.key` (Ed25519) for signatures. Both certificates name the holder as a SAN URI
`rmgr://<cluster>/<role>/<name>`; tls.crt also names the other key: `rmgr-key:<key_id>`. This module makes files as
`{name: bytes}`; `identity/credentials.py` writes and reads them. `cryptography` is imported when first used (35 ms).
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import ipaddress
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rmgr.errors import PermissionDenied, UsageError
from rmgr.model.identity import Identity, Role, check_name, parse_uri
from rmgr.model.units import utc

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

#: Days of validity; the authority's is longer than that of anything it signs.
AUTHORITY_DAYS = 3650
DAEMON_DAYS = 730
PERSON_DAYS = 365
#: Certificates are valid from this long before they are made, because clocks differ.
SKEW_S = 300
#: SAN URI of tls.crt that links it to the holder's Ed25519 key.
KEY_SCHEME = "rmgr-key:"
#: Roles that ZooKeeper tells apart; each has a digest credential.
ZOOKEEPER_ROLES = (Role.ADMIN, Role.WATCHDOG, Role.STARTER, Role.SUBMITTER)
#: Roles that serve gRPC under the name `<role>.rmgr`.
SERVING_ROLES = (Role.WATCHDOG, Role.STARTER, Role.SUBMITTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """The cluster's certificate authority and ZooKeeper's secrets: its holder controls the cluster."""

    cluster: str
    cert_pem: bytes
    key_pem: bytes = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)  #: role -> secret of its digest credential

    @property
    def roles(self) -> dict[str, str]:
        """Returns role -> ZooKeeper digest id; public."""
        return {role: digest_id(role, secret) for role, secret in sorted(self.secrets.items())}

    def files(self) -> dict[str, bytes]:
        """Returns the files in the authority's directory, without the admin's own bundle."""
        return {"ca.crt": self.cert_pem, "ca.key": self.key_pem, "zookeeper.secrets": _json(self.secrets), "roles.json": _json(self.roles)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """Facts that a certificate of the cluster proves.

    not_after_s: end of its validity, seconds since 1970.
    """

    identity: Identity
    not_before_s: float
    not_after_s: float
    public_key: Any = field(repr=False)

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Returns whether `signature` is the holder's over `data` (Ed25519, of sign.crt only). Cost: about 0.1 ms."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        if not isinstance(self.public_key, Ed25519PublicKey):
            return False
        try:
            self.public_key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


# -- making ----------------------------------------------------------------------------------------------------------------


def make_ca(cluster: str = "") -> Authority:
    """Makes a new authority. cluster: the trust domain's name, "" = a random one."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    cluster = check_name(cluster or f"c-{secrets.token_hex(8)}")
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(cluster, "ca", cluster)
    builder = (
        _builder(name, name, key.public_key(), AUTHORITY_DAYS, None)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    made = {role.value: secrets.token_urlsafe(24) for role in ZOOKEEPER_ROLES}
    return Authority(cluster=cluster, cert_pem=_sign(builder, key), key_pem=_private_pem(key), secrets=made)


def issue(
    authority: Authority,
    name: str,
    role: Role,
    *,
    hosts: Sequence[str] = (),
    days: float = 0,
    zookeeper: bool = True,
    now_s: float | None = None,
) -> dict[str, bytes]:
    """Returns the bundle of a new identity, as files.

    Args:
        hosts: names and addresses of a daemon's machine, in addition to `<role>.rmgr`. days: 0 = the role's default.
        zookeeper: include the secret of `Role.at_zookeeper`; users behind a gateway need none.
    Raises: UsageError for an impossible name.
    """
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    if check_name(name).endswith(".rmgr"):
        raise UsageError(f"{name!r} cannot be a name here: names in .rmgr are those of roles", hint="choose another one")
    days = days or (PERSON_DAYS if role in (Role.USER, Role.OPERATOR, Role.JOIN) else DAEMON_DAYS)
    sign_key = ed25519.Ed25519PrivateKey.generate()
    tls_key = ec.generate_private_key(ec.SECP256R1())
    key_id = key_id_of(sign_key.public_key())
    who = Identity(name=name, role=role, cluster=authority.cluster, key_id=key_id)
    serves = role in SERVING_ROLES
    dns = (f"{role}.rmgr", f"{name}.{role}.rmgr", *hosts) if serves else ()
    subject = _name(name, role.value, authority.cluster)
    files = {
        "ca.crt": authority.cert_pem,
        "tls.crt": _leaf(authority, subject, tls_key.public_key(), days, now_s, uris=(who.uri, KEY_SCHEME + key_id), dns=dns, tls=True),
        "tls.key": _private_pem(tls_key),
        "sign.crt": _leaf(authority, subject, sign_key.public_key(), days, now_s, uris=(who.uri,)),
        "sign.key": _private_pem(sign_key),
        "roles.json": _json(authority.roles),
    }
    if zookeeper and role.at_zookeeper in authority.secrets:
        files["zookeeper.secret"] = credential(role.at_zookeeper, authority.secrets[role.at_zookeeper]).encode()
    if role in (Role.WATCHDOG, Role.ADMIN):
        files["zookeeper.secrets"] = _json(authority.secrets)
    return files


def issue_server(
    authority: Authority, name: str, hosts: Sequence[str], *, days: float = DAEMON_DAYS, now_s: float | None = None
) -> tuple[bytes, bytes]:
    """Returns (certificate, key) as PEM for a foreign server (ZooKeeper, Cassandra): it has host names, but no identity of the cluster."""
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(check_name(name), "server", authority.cluster)
    return _leaf(authority, subject, key.public_key(), days, now_s, dns=tuple(hosts), tls=True), _private_pem(key)


def credential(role: str, secret: str) -> str:
    """Returns the credential that proves a `role` to ZooKeeper (addauth, scheme "digest")."""
    return f"{role}:{secret}"


def digest_id(role: str, secret: str) -> str:
    """Returns the id by which ZooKeeper's ACLs name the holders of `secret`: `role:base64(sha1(role:secret))`."""
    return f"{role}:{base64.b64encode(hashlib.sha1(credential(role, secret).encode()).digest()).decode()}"  # noqa: S324 - ZooKeeper's scheme


def key_id_of(public_key: Ed25519PublicKey) -> str:
    """Returns the first 32 hex digits of the SHA-256 of the raw Ed25519 public key."""
    return hashlib.sha256(public_key.public_bytes_raw()).hexdigest()[:32]


# -- verifying ---------------------------------------------------------------------------------------------------------------


def verify_certificate(pem: bytes, ca_pem: bytes, now_s: float | None = None) -> Certified:
    """Returns the facts of a certificate that the cluster's authority signed and that is valid at `now_s` (None: at present).

    Raises: PermissionDenied with the reason. Cost: 0.3 ms.
    """
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        certificate, ca = load_certificate(pem), load_certificate(ca_pem)
    except ValueError as error:
        raise PermissionDenied(f"not a certificate: {str(error).partition('. ')[0]}") from None
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
        raise PermissionDenied(f"the certificate was issued by another authority ({_common_name(certificate.issuer)})") from None
    uris = _uris(certificate)
    if not uris:
        raise PermissionDenied("the certificate names nobody of a cluster")
    try:
        who = parse_uri(uris[0])
    except UsageError as error:
        raise PermissionDenied(f"the certificate cannot be used here: {error.message}") from None
    if who.cluster != _common_name(ca.subject):
        raise PermissionDenied(f"the certificate is for the cluster {who.cluster}, this one is {_common_name(ca.subject)}")
    key = certificate.public_key()
    if isinstance(key, Ed25519PublicKey):
        key_id = key_id_of(key)
    else:
        key_id = next((uri.removeprefix(KEY_SCHEME) for uri in uris if uri.startswith(KEY_SCHEME)), "")
    found = Certified(
        identity=replace(who, key_id=key_id),
        not_before_s=certificate.not_valid_before_utc.timestamp(),
        not_after_s=certificate.not_valid_after_utc.timestamp(),
        public_key=key,
    )
    now = time.time() if now_s is None else now_s
    if now > found.not_after_s:
        raise PermissionDenied(f"the certificate of {who.role} {who.name} ended on {utc(round(found.not_after_s * 1e6))}")
    if now < found.not_before_s:
        raise PermissionDenied(f"the certificate of {who.role} {who.name} is valid only from {utc(round(found.not_before_s * 1e6))} on")
    return found


def signing_certificate(pem: bytes, ca_pem: bytes) -> tuple[str, bytes]:
    """Returns (key id, canonical PEM) of a certificate for a signing key. Raises: as `verify_certificate`."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding

    found = verify_certificate(pem, ca_pem)
    if not isinstance(found.public_key, Ed25519PublicKey):
        raise PermissionDenied(f"the certificate of {found.identity.role} {found.identity.name} is for no signing key")
    return found.identity.key_id, load_certificate(pem).public_bytes(Encoding.PEM)


def load_certificate(data: bytes, *, is_pem: bool = True) -> x509.Certificate:
    """Returns the library's object for a certificate in PEM, or DER. Raises: ValueError if it is none, whatever the library raises."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(data) if is_pem else x509.load_der_x509_certificate(data)
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from None


def cluster_of(ca_pem: bytes) -> str:
    """Returns the trust domain of an authority's certificate. Raises ValueError."""
    return _common_name(load_certificate(ca_pem).subject)


def named_in(pem: bytes) -> Identity:
    """Returns the identity that a certificate names, valid or not. Raises ValueError, UsageError."""
    return parse_uri(next(iter(_uris(load_certificate(pem))), ""))


def hosts_in(pem: bytes) -> tuple[str, ...]:
    """Returns the host names and addresses in a certificate, except those that every holder of the role has."""
    from cryptography import x509

    names = load_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return tuple(host for host in found if not host.endswith(".rmgr"))


def identity_of(names: Sequence[str]) -> Identity:
    """Returns the identity in the SAN entries of a certificate that TLS has verified. Raises PermissionDenied."""
    uri = next((name for name in names if name.startswith("rmgr://")), "")
    key_id = next((name.removeprefix(KEY_SCHEME) for name in names if name.startswith(KEY_SCHEME)), "")
    try:
        return replace(parse_uri(uri), key_id=key_id)
    except UsageError:
        raise PermissionDenied("the certificate of the caller names nobody of this cluster") from None


# -- inside --------------------------------------------------------------------------------------------------------------------


def _leaf(
    authority: Authority,
    subject: x509.Name,
    public_key: Any,
    days: float,
    now_s: float | None,
    *,
    uris: Sequence[str] = (),
    dns: Sequence[str] = (),
    tls: bool = False,
) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    ca = load_certificate(authority.cert_pem)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    names += [_host(host) for host in dict.fromkeys(dns)]
    end_s = ca.not_valid_after_utc.timestamp()
    issuer_id = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(subject, ca.subject, public_key, days, now_s, end_s)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id), critical=False)  # Python 3.13 demands it
    )
    if tls:
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if dns else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return _sign(builder, load_pem_private_key(authority.key_pem, password=None))


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: Any, days: float, now_s: float | None, end_s: float = float("inf")
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = time.time() if now_s is None else now_s
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime.fromtimestamp(now - SKEW_S, dt.UTC))
        .not_valid_after(dt.datetime.fromtimestamp(min(now + days * 86400.0, end_s), dt.UTC))
    )


def _usage(*, signs_certificates: bool = False) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str, unit: str, organisation: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    parts = ((NameOID.COMMON_NAME, common), (NameOID.ORGANIZATIONAL_UNIT_NAME, unit), (NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _sign(builder: x509.CertificateBuilder, key: Any) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _private_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem: bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem


def _uris(certificate: x509.Certificate) -> list[str]:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _common_name(name: x509.Name) -> str:
    from cryptography.x509.oid import NameOID

    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _json(value: Mapping[str, str]) -> bytes:
    return (json.dumps(dict(value), indent=1, sort_keys=True) + "\n").encode()
