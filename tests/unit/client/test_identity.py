"""A user's signature while its certificate ends: a renewed bundle signs, and an ended one signs nothing that no node would run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.identity.credentials import Credentials, write_files
from rmgr.adapters.identity.pki import issue, make_ca
from rmgr.client.identity import Signer, unsealed
from rmgr.client.taskqueue import TaskQueue
from rmgr.errors import PermissionDenied
from rmgr.model.identity import Role
from rmgr.runtime import machine
from rmgr.submitter.questions import PublishCertificate
from tests.harness.client_cluster import running

HOUR_S = 3600.0


class Asked:
    """Publishes certificates; a gateway takes only the first one, which the connection to it has shown."""

    def __init__(self, *, is_gateway: bool) -> None:
        self.published: list[bytes] = []
        self._is_gateway = is_gateway

    def ask(self, question: Any, *, timeout_s: float) -> None:
        assert isinstance(question, PublishCertificate)
        if self._is_gateway and self.published and question.pem != self.published[0]:
            raise PermissionDenied("another certificate than that of the connection")
        self.published.append(question.pem)


@pytest.mark.parametrize("is_gateway", [False, True])
def test_a_renewed_bundle_signs_before_the_certificate_ends_and_an_ended_one_signs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gateway: bool
) -> None:
    authority = make_ca("lab")
    write_files(tmp_path / "ann", issue(authority, "ann", Role.USER, days=2 / 24))
    first = Credentials.load(tmp_path / "ann")
    asks: Any = Asked(is_gateway=is_gateway)
    signer = Signer(first, "c", ttl_s=600.0)
    assert signer.publish(asks) is first
    assert not signer.must_look, "it has just looked"
    monkeypatch.setattr(machine, "monotonic", lambda now=machine.monotonic: now() + 61)
    assert signer.must_look, "the end is near"
    write_files(tmp_path / "ann", issue(authority, "ann", Role.USER, days=30), replace=True)
    signs = signer.publish(asks)
    assert (signs is first) is is_gateway
    wall_s = machine.wall_s
    monkeypatch.setattr(machine, "wall_s", lambda: wall_s() + 3 * HOUR_S)
    assert signer.must_look is is_gateway
    if is_gateway:
        with pytest.raises(PermissionDenied, match=r"the certificate of user ann ended at .*, and no node runs what is signed afterwards"):
            signer.check()
    else:
        signer.check()
        assert len(asks.published) == 2


class Ending:
    """Signs nothing, as in an open cluster, with a certificate that ends when the test says so."""

    user = "ann"

    def __init__(self) -> None:
        self.must_look = False
        self.looks = 0

    def publish(self, _asks: Any, *, timeout_s: float = 10.0) -> None:
        self.looks += 1

    def check(self) -> None:
        if self.must_look:
            raise PermissionDenied("the certificate of user ann ended")

    def sign(self, record: Any, blocks: Any) -> tuple[Any, Any]:
        return record, blocks

    def sealer(self, _record: Any) -> Any:
        return unsealed


def test_a_queue_that_grows_after_the_certificate_has_ended_says_so_and_submits_nothing_more() -> None:
    with running() as (_, connection):
        signer: Any = Ending()
        connection.submitter.signer = signer
        queue = TaskQueue(abs, connection=connection)
        assert queue.submit_call(-1).result(60) == 1
        looked = signer.looks
        assert queue.submit_call(-2).result(60) == 2
        assert signer.looks == looked, "nothing is looked for while the end is far"
        signer.must_look = True
        with pytest.raises(PermissionDenied, match="the certificate of user ann ended"):
            queue.submit_call(-3).result(60)
        assert signer.looks == looked + 1
