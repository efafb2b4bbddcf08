"""Certificates, bundles and tokens to join: issued ones verify, all others are refused with a helpful sentence."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from rmgr.adapters.identity import invitation
from rmgr.adapters.identity.credentials import Credentials, load_ca, write_files
from rmgr.adapters.identity.pki import digest_id, issue, issue_server, make_ca, verify_certificate
from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys
from rmgr.coord.ops.membership import identify
from rmgr.coord.protocol import paths
from rmgr.errors import ConfigError, PermissionDenied, UsageError
from rmgr.model.identity import Role
from tests.harness.bundles import Bundles, session_bundles
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_tree import MemoryTree

DAY_S = 86400.0


def _bundle(tmp_path: Path, **options: object) -> Path:
    return write_files(tmp_path / "b", issue(session_bundles().ca, "alice", Role.USER, **options))  # type: ignore[arg-type]


def test_a_bundle_says_who_it_is_and_signs() -> None:
    bundles = session_bundles()
    mine = bundles.credentials(Role.USER, "alice")
    assert (mine.identity.name, mine.identity.role, mine.identity.cluster) == ("alice", Role.USER, bundles.ca.cluster)
    certified = bundles.credentials(Role.STARTER, "n1").certified(mine.certificate_pem)
    assert certified.identity == mine.identity
    assert len(mine.identity.key_id) == 32
    signature = mine.sign(b"work")
    assert len(signature) == 64
    assert certified.verify(signature, b"work")
    assert not certified.verify(signature, b"other work")
    assert not verify_certificate(mine.tls_pair[0], mine.ca_pem).verify(signature, b"work")  # not the key for that


def test_both_certificates_name_the_same_key() -> None:
    mine = session_bundles().credentials(Role.STARTER, "n1")
    assert verify_certificate(mine.tls_pair[0], mine.ca_pem).identity == mine.identity


def test_secrets_are_shared_by_role_and_only_the_watchdog_and_the_admin_have_all(tmp_path: Path) -> None:
    bundles = session_bundles()
    starter, other = bundles.credentials(Role.STARTER, "n1"), bundles.credentials(Role.STARTER, "n2")
    assert starter.zookeeper_auth == other.zookeeper_auth
    assert starter.zookeeper_auth is not None
    role, _, secret = starter.zookeeper_auth[1].partition(":")
    assert starter.roles[role] == digest_id(role, secret)
    assert starter.zookeeper_secrets == {}
    assert dict(bundles.credentials(Role.WATCHDOG).zookeeper_secrets) == dict(bundles.ca.secrets)
    assert bundles.credentials(Role.USER, "bob", zookeeper=False).zookeeper_auth is None
    assert load_ca(bundles.ca_dir) == bundles.ca
    for file in bundles.ca_dir.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600
    assert secret not in repr(starter)
    assert "PRIVATE" not in repr(starter) + repr(bundles.ca)


def _of_no_version(pem: bytes) -> bytes:
    """A certificate of X.509's version 117."""
    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    return ssl.DER_cert_to_PEM_cert(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x75", 1)).encode()


def test_a_certificate_of_no_version_that_there_is_is_refused() -> None:
    mine = session_bundles().credentials(Role.USER, "alice")
    with pytest.raises(PermissionDenied, match="not a certificate"):
        verify_certificate(_of_no_version(mine.certificate_pem), mine.ca_pem)


def test_whoever_is_asked_about_a_key_with_such_a_certificate_is_told_so() -> None:
    mine = session_bundles().credentials(Role.USER, "alice")
    zk = MemoryCoordinator(MemoryTree())
    zk.ensure(["/", paths.IDENTITIES, paths.REVOKED])
    zk.commit(identify("ab" * 16, _of_no_version(mine.certificate_pem))).result(60)
    found = Trust(ZooKeeperKeys(zk), mine.ca_pem).find("ab" * 16, at_s=time.time(), timeout_s=20)
    assert "not a certificate" in str(found)


def test_certificates_of_others_are_refused() -> None:
    bundles, stranger = session_bundles(), session_bundles("elsewhere")
    with pytest.raises(PermissionDenied, match="issued by another authority"):
        verify_certificate(stranger.credentials(Role.USER, "alice").certificate_pem, bundles.ca.cert_pem)
    namesake = make_ca(bundles.ca.cluster)  # the same name, another key
    with pytest.raises(PermissionDenied, match="issued by another authority"):
        verify_certificate(issue(namesake, "alice", Role.ADMIN)["sign.crt"], bundles.ca.cert_pem)
    with pytest.raises(PermissionDenied, match="not a certificate"):
        verify_certificate(b"nonsense", bundles.ca.cert_pem)
    server, _ = issue_server(bundles.ca, "zk1", ["zk1"])
    with pytest.raises(PermissionDenied, match="names nobody"):
        verify_certificate(server, bundles.ca.cert_pem)


def test_certificates_end_and_begin() -> None:
    ca = session_bundles().ca
    pem = issue(ca, "alice", Role.USER, days=3)["sign.crt"]
    now = time.time()
    assert verify_certificate(pem, ca.cert_pem, now + 2.9 * DAY_S).identity.name == "alice"
    with pytest.raises(PermissionDenied, match="user alice ended on"):
        verify_certificate(pem, ca.cert_pem, now + 3.1 * DAY_S)
    with pytest.raises(PermissionDenied, match="valid only from"):
        verify_certificate(pem, ca.cert_pem, now - DAY_S)
    assert verify_certificate(issue(ca, "a", Role.USER, days=99999)["tls.crt"], ca.cert_pem).not_after_s <= now + 3651 * DAY_S


def test_names_cannot_pretend_to_be_roles() -> None:
    for name in ("watchdog.rmgr", "a/b", "", "-x", "x" * 64, "a b", "a\n"):
        with pytest.raises(UsageError):
            issue(session_bundles().ca, name, Role.USER)


@pytest.mark.parametrize("name", ["ca.crt", "tls.key", "sign.crt", "roles.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    where = _bundle(tmp_path)
    (where / name).unlink()
    with pytest.raises(ConfigError, match=f"{name} is missing"):
        Credentials.load(where)


def test_files_open_to_others_are_refused_with_the_command_that_closes_them(tmp_path: Path) -> None:
    where = _bundle(tmp_path)
    for path, mode in ((where, 0o755), (where / "sign.key", 0o640), (where / "zookeeper.secret", 0o604), (where / "ca.crt", 0o666)):
        before = path.stat().st_mode & 0o777
        path.chmod(mode)
        with pytest.raises(ConfigError, match=f"{path} is open to others") as told:
            Credentials.load(where)
        assert told.value.hint.startswith("chmod ")
        path.chmod(before)
    (where / "ca.crt").chmod(0o644)  # public, as packaging leaves it
    assert Credentials.load(where).identity.name == "alice"


def test_files_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = _bundle(tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: where.stat().st_uid + 4321)
    if where.stat().st_uid == 0:
        import os

        os.chown(where, 54321, -1)
    with pytest.raises(ConfigError, match="belongs to user") as told:
        Credentials.load(where)
    assert "chown" in told.value.hint


def test_bad_bundles_say_what_is_wrong(tmp_path: Path) -> None:
    bundles = session_bundles()
    with pytest.raises(ConfigError, match="there is no bundle"):
        Credentials.load(tmp_path / "nowhere")
    where = _bundle(tmp_path, days=2)
    with pytest.raises(ConfigError, match=r"sign.crt: the certificate of user alice ended on") as told:
        Credentials.load(where, now_s=time.time() + 3 * DAY_S)
    assert "rmgr admin" in told.value.hint
    with pytest.raises(ConfigError, match="valid only from") as told:
        Credentials.load(where, now_s=time.time() - DAY_S)
    assert "clock" in told.value.hint
    with pytest.raises(ConfigError, match="is the bundle of user alice"):
        Credentials.load(where, roles=(Role.STARTER,))
    other = issue(bundles.ca, "bob", Role.USER)
    for name, words in (("tls.crt", "tls.crt is that of user bob"), ("sign.key", "does not belong to sign.crt")):
        mine = issue(bundles.ca, "alice", Role.USER)
        write_files(where, mine | {name: other[name]}, replace=True)
        with pytest.raises(ConfigError, match=words):
            Credentials.load(where)
    write_files(where, issue(bundles.ca, "alice", Role.USER) | {"ca.crt": make_ca().cert_pem}, replace=True)
    with pytest.raises(ConfigError, match="issued by another authority"):
        Credentials.load(where)
    with pytest.raises(ConfigError, match="there is no ca"):
        load_ca(where)


def test_a_bundle_that_is_only_shown_is_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = _bundle(tmp_path)
    whole, shown = Credentials.load(where), Credentials.shown(where)
    for name in ("identity", "ca_pem", "tls_pair", "certificate_pem", "roles", "zookeeper_auth", "not_after_s"):
        assert getattr(shown, name) == getattr(whole, name), name
    with monkeypatch.context() as patch:
        patch.setattr(Credentials, "load", None)  # it is not needed
        signature = shown.sign(b"work")
    assert signature == whole.sign(b"work")  # Ed25519 has one signature a message


def test_what_is_wrong_with_a_shown_bundle_is_said_at_the_latest_when_it_signs(tmp_path: Path) -> None:
    bundles = session_bundles()
    where = _bundle(tmp_path, days=2)
    with pytest.raises(ConfigError, match="ended on"):
        Credentials.shown(where, now_s=time.time() + 3 * DAY_S)
    mine, again = (issue(bundles.ca, "alice", Role.USER) for _ in range(2))
    write_files(where, mine | {"sign.crt": issue(bundles.ca, "bob", Role.USER)["sign.crt"]}, replace=True)
    with pytest.raises(ConfigError, match=r"tls\.crt is that of user alice"):
        Credentials.shown(where)
    write_files(where, mine | {"sign.key": again["sign.key"]}, replace=True)
    with pytest.raises(ConfigError, match=r"does not belong to sign\.crt"):
        Credentials.shown(where).sign(b"work")
    write_files(where, mine | {"ca.crt": make_ca().cert_pem}, replace=True)
    with pytest.raises(ConfigError, match="issued by another authority"):
        Credentials.shown(where).sign(b"work")
    write_files(where, mine | {"sign.crt": b"nonsense"}, replace=True)
    with pytest.raises(ConfigError, match=r"sign.crt"):
        Credentials.shown(where)
    (where / "sign.crt").chmod(0o666)
    with pytest.raises(ConfigError, match="is open to others"):
        Credentials.shown(where)


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    where = _bundle(tmp_path)
    before = (where / "sign.key").read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        write_files(where, issue(session_bundles().ca, "alice", Role.USER))
    assert (where / "sign.key").read_bytes() == before


def test_server_certificates_pass_python_s_own_strict_checks(tmp_path: Path) -> None:
    """As kazoo and the Cassandra driver check them; strict is the default from Python 3.13 on."""
    bundles = Bundles(tmp_path, cluster="tls")
    cert, key = issue_server(bundles.ca, "zk1", ["zk1.example", "127.0.0.1"])
    (tmp_path / "s.crt").write_bytes(cert)
    (tmp_path / "s.key").write_bytes(key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "s.crt", tmp_path / "s.key")
    server.load_verify_locations(cadata=bundles.ca.cert_pem.decode())
    server.verify_mode = ssl.CERT_REQUIRED
    mine = bundles.credentials(Role.STARTER, "n1")
    for host, good in (("zk1.example", True), ("127.0.0.1", True), ("zk2.example", False)):
        client = ssl.create_default_context(cadata=bundles.ca.cert_pem.decode())
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        client.load_cert_chain(mine.path("tls.crt"), mine.path("tls.key"))
        assert _handshake(server, client, host) == good


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> bool:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server, server_hostname=host), server.wrap_bio(to_server, to_client, server_side=True)]
    done = set()
    for _ in range(10):
        for number, end in enumerate(ends):
            try:
                end.do_handshake()
                done.add(number)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
        if len(done) == 2:
            return True
    return False


TOKEN = invitation.Token(
    ca=b"\x30ca", certificate=b"\x30cert", key=b"k" * 32, invitation="ab12", name="n1", role="starter", endpoints=("wd:7070",),
    zk="zk:2181/rmgr/x",
)


def test_a_token_is_one_word_and_says_all_of_it() -> None:
    text = invitation.encode(TOKEN)
    assert text.split() == [text]
    assert invitation.decode(text) == TOKEN


def test_a_token_survives_being_wrapped_by_a_terminal() -> None:
    text = invitation.encode(TOKEN)
    assert invitation.decode(f" {text[:40]}\n{text[40:]} \n") == TOKEN


@pytest.mark.parametrize("cut", [10, 60, -1])
def test_a_damaged_token_is_refused_without_being_repeated(cut: int) -> None:
    text = invitation.encode(TOKEN)[:cut]
    with pytest.raises(UsageError) as told:
        invitation.decode(text)
    assert text[6:] not in f"{told.value} {told.value.hint}"


def test_a_token_whose_certificate_was_changed_is_refused() -> None:
    with pytest.raises(UsageError, match="damaged"):
        invitation.tls_pair(invitation.decode(invitation.encode(TOKEN)))


def test_only_the_secret_opens_and_only_for_its_purpose() -> None:
    files = {"tls.key": b"secret", "ca.crt": b"public"}
    sealed = invitation.seal_files(b"s" * 32, "bundle of n1", files)
    assert b"secret" not in sealed
    assert invitation.unseal_files(b"s" * 32, "bundle of n1", sealed) == files
    for secret, purpose, content in (
        (b"t" * 32, "bundle of n1", sealed),
        (b"s" * 32, "bundle of n2", sealed),
        (b"s" * 32, "bundle of n1", sealed[:-1] + bytes([sealed[-1] ^ 1])),
        (b"s" * 32, "bundle of n1", b""),
    ):
        with pytest.raises(UsageError):
            invitation.unseal_files(secret, purpose, content)
