"""Log lines have closed fields and no secrets, and the audit names users and their requests."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from rmgr import log as logs
from rmgr.audit_book import AuditBook
from rmgr.config import LogConfig
from rmgr.log import audit, redacted

PEM = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIKtSECRETq\n-----END PRIVATE KEY-----"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"key: {PEM} end", "key: *** end"),
        (PEM[:50], "***"),  # cut off
        (f"loaded {CERTIFICATE}", f"loaded {CERTIFICATE}"),
        ("cassandra://anna:hunter2@h1,h2/ks", "cassandra://anna:***@h1,h2/ks"),
        ("sqlite:/var/lib/rmgr/store.db", "sqlite:/var/lib/rmgr/store.db"),
        ("cassandra://h1:9042/ks?user=rmgr", "cassandra://h1:9042/ks?user=rmgr"),
        ("login failed, password=hunter2&x=1", "login failed, password=***&x=1"),
        ('{"secret": "hunter2", "a": 1}', '{"secret": "***", "a": 1}'),
        ("rmgr join rmgr1.AbCdEf0123456789_-xyz", "rmgr join rmgr1.***"),
        ("the secret of success", "the secret of success"),
        ("rmgr://cluster/user/anna", "rmgr://cluster/user/anna"),
    ],
)
def test_a_text_loses_its_secrets_and_nothing_else(text: str, clean: str) -> None:
    assert redacted(text) == clean


def test_secrets_are_found_inside_of_things() -> None:
    assert redacted({"a": [("x", PEM)], "zk_password": "p", "n": 1}) == {"a": [["x", "***"]], "zk_password": "***", "n": 1}


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Sets logging up as a daemon does."""

    def made(role: str, *, level: str = "info") -> Any:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own
        return logs.setup(LogConfig(format="json", level=level), role)

    yield made
    structlog.reset_defaults()


def test_no_log_line_has_a_secret_whoever_writes_it(start: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    log = start("starter")
    log.info("credentials_loaded", detail=PEM, zookeeper="digest://starter:geheim@h", value={"password": "geheim"})
    try:
        raise ValueError("cannot log in as rmgr, password=geheim")
    except ValueError:
        log.exception("store_failed")
    logging.getLogger("driver").error("auth failed for %s", "cassandra://u:geheim@h/k")
    text = capsys.readouterr().err
    assert "geheim" not in text
    assert "SECRETq" not in text
    assert "cannot log in as rmgr" in text
    assert "driver: auth failed for cassandra://u:***@h/k" in text


def test_words_of_users_do_not_steer_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setenv("NO_COLOR", "1")
    try:
        log = logs.setup(LogConfig(format="pretty"), "starter")
        log.warning("work_refused", user="a\x1b[2Jb", why="two words \x9b31m", name="\u202e")
        try:
            raise ValueError("\x1b]0;title")
        except ValueError:
            log.exception("store_failed")
    finally:
        structlog.reset_defaults()
    text = capsys.readouterr().err
    assert text.replace("\n", "").isprintable()
    assert "a\\x1b[2Jb" in text
    assert "ValueError: \\x1b]0;title" in text


def test_the_audit_says_who_wanted_what_and_by_which_rule(start: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    log = start("submitter")
    audit(log, who="ben", role="user", what="cancel", target="42", allowed=False, why="it belongs to anna")
    audit(log, who="olga", role="operator", what="drain", target="n1", allowed=True, why="operator")
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    first, second = ({key: line[key] for key in ("event", "level", "who", "role", "what", "target", "allowed", "why")} for line in told)
    assert first == {
        "event": "audit", "level": "warning", "who": "ben", "role": "user", "what": "cancel", "target": "42", "allowed": False,
        "why": "it belongs to anna",
    }  # fmt: skip
    assert (second["level"], second["allowed"]) == ("info", True)


def test_a_library_that_a_client_makes_complain_without_end_writes_few_lines_a_minute(
    start: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    start("submitter")
    for _ in range(1000):
        logging.getLogger("grpc._server").error("Exception calling application: %s", "x")
    logging.getLogger("kazoo.client").error("of another place")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["ERROR grpc._server: Exception calling application: x"] * 20 + ["ERROR kazoo.client: of another place"]
    logs.LIBRARIES.flush()
    assert capsys.readouterr().err.endswith(": 980 more like this\n")


def test_what_fails_again_and_again_writes_few_lines_a_minute_and_the_rest_is_counted(
    start: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "TROUBLES", AuditBook(60))
    log = start("starter")
    for number in range(1000):
        log.warning("commit_over_quota", op=f"op{number}")
    log.error("disk_full")
    written = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line.get("op", line["event"]) for line in written] == [*(f"op{number}" for number in range(60)), "disk_full"]
    logs.TROUBLES.flush()
    told = json.loads(capsys.readouterr().err)
    assert (told["event"], told["what"], told["count"], told["role"]) == ("lines_left_out", "commit_over_quota", 940, "starter")


def test_the_audit_loses_no_line_among_others_nor_does_who_asks_for_every_line(
    start: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FACTS", AuditBook(1))
    log = start("submitter", level="debug")
    for number in range(700):
        audit(log, who="olga", role="operator", what="cancel", target=str(number), allowed=True)
        log.debug("question_asked", count=number)
        log.info("request_answered", count=number)
    events = Counter(json.loads(line)["event"] for line in capsys.readouterr().err.splitlines())
    logs.FACTS.flush()
    assert events == {"audit": 700, "question_asked": 700, "request_answered": 1}


def test_daemons_log_without_rich() -> None:
    look = "import sys, rmgr.log; print([name for name in sys.modules if name.partition('.')[0] == 'rich']); import rich.console"
    ended = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[]\n"


def test_daemons_load_no_event_loop() -> None:
    look = """
import sys, rmgr.daemons.starter.main, rmgr.daemons.leader.watchdog, rmgr.daemons.gateway.main
unused = ("asyncio.events", "grpc.aio._server", "grpc_health.v1._health_pb2_async", "http.server", "email", "prometheus_client.exposition")
assert not [name for name in unused if name in sys.modules], "loaded"
import asyncio, grpc.aio
from grpc_health.v1 import _async

async def hello():
    await asyncio.sleep(0)
    return grpc.aio.server, _async.HealthServicer

assert asyncio.run(hello())[0] is sys.modules["grpc.aio"].server
import importlib.metadata, locale, prometheus_client, tarfile
from google.protobuf import text_format
from grpc_health.v1.health_pb2 import HealthCheckResponse
assert importlib.metadata.version("kazoo") and locale.getencoding() and tarfile.TarFile and prometheus_client.generate_latest
assert text_format.MessageToString(HealthCheckResponse(status=1)) == "status: SERVING\\n"
from prometheus_client.exposition import generate_latest
assert generate_latest is prometheus_client.generate_latest
print("as usual")
"""
    ended = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("as usual\n", "")


def test_no_known_field_has_the_name_of_a_secret() -> None:
    from rmgr.log import FIELDS, SECRETS

    assert not [field for field in FIELDS if any(word in field for word in SECRETS)]
