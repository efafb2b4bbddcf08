"""The URL of a Cassandra store: what it may say, and that it never carries or repeats a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmgr.adapters.cassandra.url import PASSWORD_FILE_VARIABLE, parse_url
from rmgr.adapters.stores import check_url
from rmgr.errors import ConfigError, UsageError


def test_everything_that_a_url_may_say() -> None:
    target = parse_url(
        "cassandra://h1,h2,10.0.0.3:9142/my_keys?replication_factor=5&local_dc=Berlin-1&consistency=quorum&user=me&password_file=/p"
        "&ca=/ca.pem&cert=/c.pem&key=/k.pem&check_hostname=0&request_timeout=3.5&connect_timeout=2s"
    )
    assert (target.hosts, target.port, target.keyspace) == (("h1", "h2", "10.0.0.3"), 9142, "my_keys")
    assert (target.replication_factor, target.local_dc, target.consistency) == (5, "Berlin-1", "QUORUM")
    assert (target.user, target.password_file) == ("me", "/p")
    assert (target.tls, target.ca, target.cert, target.key, target.check_hostname) == (True, "/ca.pem", "/c.pem", "/k.pem", False)
    assert (target.request_timeout_s, target.connect_timeout_s) == (3.5, 2.0)


def test_what_a_url_need_not_say() -> None:
    target = parse_url("cassandra://host/rmgr", environ={})
    assert (target.port, target.replication_factor, target.local_dc, target.consistency) == (9042, 3, "datacenter1", "LOCAL_QUORUM")
    assert (target.tls, target.check_hostname, target.user) == (False, True, "")
    assert target.where == "host (port 9042)"
    assert parse_url("cassandra://[::1]:9043/rmgr").hosts == ("::1",)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("cassandra:host/rmgr", "cassandra://"),
        ("cassandra:///rmgr", "no host"),
        ("cassandra://h1,,h2/rmgr", "no host"),
        ("cassandra://h 1/rmgr", "'h 1'"),
        ("cassandra://host", "no keyspace"),
        ("cassandra://host/Big", "'Big'"),
        ("cassandra://host/a/b", "'a/b'"),
        ("cassandra://host/rmgr;DROP", "keyspace"),
        ("cassandra://host:port/rmgr", "'port'"),
        ("cassandra://host:0/rmgr", "'0'"),
        ("cassandra://h1:1,h2:2/rmgr", "one port"),
        ("cassandra://host/rmgr?colour=red", "no option 'colour'"),
        ("cassandra://host/rmgr?user", "name=value"),
        ("cassandra://host/rmgr?user=", "has no value"),
        ("cassandra://host/rmgr?local_dc=a&local_dc=b", "twice"),
        ("cassandra://host/rmgr?replication_factor=0", "replication_factor=0"),
        ("cassandra://host/rmgr?consistency=MOST", "consistency=MOST"),
        ("cassandra://host/rmgr?request_timeout=soon", "request_timeout=soon"),
        ("cassandra://host/rmgr?check_hostname=maybe", "check_hostname=maybe"),
        ("cassandra://host/rmgr?user=me", "no password file for user 'me'"),
        ("cassandra://host/rmgr?password_file=/p", "no user"),
        ("cassandra://host/rmgr?cert=/c", "belong together"),
        ("cassandra://host/rmgr?ca=/c&tls=0", "tls=0"),
    ],
)
def test_what_is_wrong_is_named(url: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url, environ={})
    assert says in caught.value.message
    with pytest.raises(UsageError):
        check_url(url)


def test_an_unknown_option_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        parse_url("cassandra://host/rmgr?colour=red")
    for name in ("replication_factor", "local_dc", "password_file", "request_timeout"):
        assert name in caught.value.hint


@pytest.mark.parametrize(
    "url", ["cassandra://me:geheim@host/rmgr", "cassandra://host/rmgr?user=me&password=geheim", "cassandra://host/rmgr?pwd=geheim"]
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert "geheim" not in f"{caught.value.message} {caught.value.hint}"
    assert "password_file" in caught.value.hint


def test_a_password_comes_from_a_file_of_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("geheim\n")
    file.chmod(0o600)
    target = parse_url("cassandra://host/rmgr?user=me", environ={PASSWORD_FILE_VARIABLE: str(file)})
    assert target.password() == "geheim"
    assert "geheim" not in repr(target)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="mode 0640") as caught:
        target.password()
    assert caught.value.hint == f"chmod 600 {file}"
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        target.password()
