"""The health check of containers: what one daemon says of itself, as an exit code."""

from __future__ import annotations

import pytest

from rmgr.adapters.rpc.server import RpcServer
from rmgr.cli import health


def test_the_exit_code_is_what_the_daemon_says(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TIMEOUT_S", 1.0)
    server = RpcServer("127.0.0.1:0", threads=2)
    server.start()
    try:
        assert health.main([server.endpoint]) == 0
        assert capsys.readouterr().out == f"{server.endpoint}: serving\n"
        server.set_healthy(False)
        assert health.main([server.endpoint]) == 1
        assert capsys.readouterr().out == f"{server.endpoint}: not serving\n"
    finally:
        server.stop(0.0)
    assert health.main([server.endpoint]) == 1


@pytest.mark.parametrize("words", [[], ["--help"], ["127.0.0.1:1", "/nowhere", "more"]])
def test_wrong_use_is_told_apart(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main(words) == 2
    assert "usage" in capsys.readouterr().err


def test_credentials_that_are_not_there_are_named(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main(["127.0.0.1:1", f"{tmp_path}/none"]) == 1
    assert f"{tmp_path}/none" in capsys.readouterr().err
