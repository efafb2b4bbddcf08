"""A hand-made client attacks a real gateway: messages that no client of rmgr sends are refused, and others' work goes on.

The attacker is mallory, a plain user with a certificate of the cluster; ann works beside him, through the same gateway.
"""

from __future__ import annotations

import json
import shlex
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmgr.adapters.identity.credentials import Credentials
from rmgr.client.connection import connect
from rmgr.client.taskqueue import TaskQueue
from rmgr.config import ClusterConfig, Config, SecurityConfig
from rmgr.coord.decisions.keeping import PATIENCE_S
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record, encode_block, encode_record
from rmgr.dev.cluster import DevCluster
from rmgr.errors import (
    Infeasible,
    InvalidRecord,
    NotFound,
    PermissionDenied,
    RmgrError,
    StateConflict,
    Throttled,
    UsageError,
    VersionMismatch,
)
from rmgr.model.base import Request
from rmgr.model.block import NO_SEQ, Allocation, BlockData, BlockKey, Fragment, Outcome
from rmgr.model.identity import Role
from rmgr.model.node import SubmitterEntry
from rmgr.model.queue import QueueSpec, UserLimits
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Phase, Submission, Tail, Terms, Work
from rmgr.submitter import messages as m
from rmgr.submitter import questions as q
from rmgr.submitter.port import Growth
from tests.harness import hostile
from tests.harness.attacker import Scene, changed, unique
from tests.harness.fair_time import FairTimer
from tests.harness.gateway_process import GatewayProcess
from tests.harness.handmade import Handmade
from tests.harness.waiting import eventually

REFUSED = (PermissionDenied, InvalidRecord)
QUEUES = (
    QueueSpec(name="anns", users=("ann",)),
    QueueSpec(name="shut", state="closed"),
    QueueSpec(name="small", max_cores=1, max_priority=5),
    QueueSpec(name="stopped", state="stopped"),
)
SAMPLES = {type(record): record for record in hostile.SAMPLES}
GUID = "0123456789abcdef" * 2
Block = tuple[BlockKey, BlockData]


def draft(user: str, **record: Any) -> Submission:
    told = {"id": 0, "name": "a", "queue": "default", "work": Work.COMMAND, "command": Command(argv=("/bin/true",)), "submitted_us": 1}
    return Submission(user=user, **(told | record))


def block(number: int = 0, **key: Any) -> Block:
    told = {"priority": 0, "seq": NO_SEQ, "first": 0, "count": 1, "attempt": 1, "cores": 1, "memory_mib": 0}
    return BlockKey(submission=number, **(told | key)), BlockData()


class Client(Handmade):
    """Somebody's way through the gateway, and what he makes by hand."""

    def open(self, **record: Any) -> m.Placed:
        """An honest submission of his that has not ended: nothing was enqueued yet, and he looks after it."""
        return self.order(self.place(draft(self.name, **record), complete=False, is_owned=True))

    def record(self, number: int) -> Submission:
        return self.ask(q.ReadRecord(number=number)).record


@pytest.fixture(scope="module")
def cluster(attacked: Scene) -> DevCluster:
    return attacked.cluster


@pytest.fixture(scope="module")
def gateway(cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(cluster.daemon_environment("submitter", "g1"), tmp_path_factory.mktemp("gateway")) as made:
        yield made


@pytest.fixture(scope="module")
def bundles(cluster: DevCluster) -> dict[str, Path]:
    assert cluster.security is not None
    roles = {"ann": Role.USER, "mallory": Role.USER, "olga": Role.OPERATOR}
    return {name: cluster.security.bundle(role, name) for name, role in roles.items()}


@pytest.fixture(scope="module")
def people(cluster: DevCluster, gateway: GatewayProcess, bundles: dict[str, Path]) -> Iterator[dict[str, Client]]:
    number = cluster.snapshot().cluster_id
    made = {name: Client(gateway.endpoint, Credentials.load(bundle), number) for name, bundle in bundles.items()}
    read = made["olga"].ask(q.ReadSettings())
    made["olga"].ask(q.ApplySettings(settings=replace(read.settings, queues=(*read.settings.queues, *QUEUES)), version=read.version))
    eventually(lambda: made["ann"].ask(q.ReadSettings()).settings.queue("small"), "the queues are there")
    try:
        yield made
    finally:
        for client in made.values():
            client.close()


@pytest.fixture(scope="module")
def anns(gateway: GatewayProcess, bundles: dict[str, Path]) -> Iterator[TaskQueue]:
    """Ann's work with a client of rmgr."""
    config = Config(cluster=ClusterConfig(gateway=gateway.endpoint), security=SecurityConfig(dir=str(bundles["ann"])))
    with connect(config=config) as connection, TaskQueue(abs, connection=connection, name=unique()) as queue:
        yield queue


@pytest.fixture(autouse=True)
def others_go_on(people: dict[str, Client], anns: TaskQueue) -> Iterator[None]:
    """After each attack ann's work runs as before."""
    yield
    assert anns.submit_call(-7).result(60) == 7


@pytest.fixture
def mallory(people: dict[str, Client], cluster: DevCluster, gateway: GatewayProcess, bundles: dict[str, Path]) -> Iterator[Client]:
    """A stream of this test's own."""
    with Client(gateway.endpoint, Credentials.load(bundles["mallory"]), cluster.snapshot().cluster_id) as made:
        yield made


def refused(client: Client, place: m.Place, *kinds: type[RmgrError], match: str | None = None) -> None:
    """It is, and nothing of it is made."""
    with pytest.raises(kinds or REFUSED, match=match):
        client.order(place)
    nonce = json.loads(place.record).get("nonce", "")
    assert not [one for one in client.of(m.Placed) if nonce and nonce in one.record.decode(errors="replace")]


def ends(cluster: DevCluster, number: int) -> list[str]:
    return cluster.coordinator.children(paths.done(number)).result(60) or []


def grown(client: Client, number: int, tail: Tail, blocks: list[Block], *, kept: int = 0, **more: Any) -> Tail:
    """A growth of a submission of his, sealed by him, on a name of its own. Raises why it is refused."""
    kept = kept or client.keep(number, is_owned=True)
    sealed = client.signer.sealer(client.record(number))(blocks)
    return client.grow(kept, tail, sealed, **more)


# -- submitting ------------------------------------------------------------------------------------------------------------------


def test_what_he_submits_honestly_by_hand_runs(cluster: DevCluster, mallory: Client) -> None:
    number = mallory.submit(draft("mallory"), [block()]).submission.id
    eventually(lambda: ends(cluster, number), "it has ended")
    kept = mallory.keep(number)
    assert mallory.wait(m.Fragments, kept=kept).first == 0


@pytest.mark.parametrize(
    "key", [{"cores": 0}, {"count": 0}, {"cores": 99_999}, {"attempt": 0}, {"attempt": 999_999}, {"priority": 999_999},
            {"first": 5_000_000_000}, {"count": 999}, {"memory_mib": 7}]
)  # fmt: skip
def test_a_crooked_block_does_not_pass(mallory: Client, key: dict[str, int]) -> None:
    refused(mallory, mallory.place(draft("mallory"), [block(**key)], tasks=1))
    placed = mallory.open()
    tail = m.submitted_of(placed).tail
    with pytest.raises(REFUSED):
        grown(mallory, placed.number, replace(tail, next=1, enqueued=unique()), [block(placed.number, **key)])


@pytest.mark.parametrize(
    "data", [{"allocation": Allocation(shares=(("n1", 1),), threads=1)}, {"done": 1}, {"incarnation": 3}, {"row": "../../x"},
             {"row": f"args/{1:010d}/{0:010d}/{'a' * 64}"}, {"base": -1}, {"base": 1 << 60}, {"retries": -1}, {"payloads": (b"", b"")},
             {"past": ("x",)}, {"stamp": "x" * 9000}, {"function": "../x"}, {"started": 1 << 62}]
)  # fmt: skip
def test_a_crooked_blocks_data_do_not_pass(mallory: Client, data: dict[str, Any]) -> None:
    def spoilt(place: m.Place | m.Grow) -> Any:
        [(name, made)] = place.blocks
        kept = msgspec.msgpack.decode(made, type=BlockData)
        return msgspec.structs.replace(place, blocks=[(name, encode_block(changed(kept, **data)))])

    refused(mallory, spoilt(mallory.place(draft("mallory"), [block()])))
    placed = mallory.open()
    kept = mallory.keep(placed.number, is_owned=True, is_fresh=True)
    new = replace(m.submitted_of(placed).tail, next=1, enqueued=unique())
    sealed = mallory.signer.sealer(m.submitted_of(placed).submission)([block(placed.number)])
    mallory.say(spoilt(m.grow_of(kept, Growth(tail=new, blocks=sealed))))
    mallory.wait(m.Dead, kept=kept)
    assert mallory.ask(q.ReadRecord(number=placed.number)).tail.next == 0


@pytest.mark.parametrize(
    "record", [{"spec_sha256": "../../x"}, {"user": "ann"}, {"name": "\0"}, {"closed_us": 5}, {"phase": "CLOSED"}, {"phase": "CANCELLED"},
               {"max_running": -1}, {"retries": -5}, {"owner": GUID}, {"request": Request(cores=0)}, {"request": Request(cores=-1)},
               {"format": 2}, {"priority": 1 << 70}, {"grace_us": -1}, {"command": None}, {"by": "olga"}, {"reason": "OPERATOR_HOLD"},
               {"phase": "HELD", "reason": "OPERATOR_HOLD"}, {"nonce": "x"},
               {"nonce": ""}, {"nonce": "x" * 32}, {"signed_s": -1}, {"signed_s": 1}]
)  # fmt: skip
def test_a_crooked_record_does_not_pass(mallory: Client, record: dict[str, Any]) -> None:
    place = mallory.place(draft("mallory"), [block()])
    plain = json.loads(place.record) | json.loads(encode_record(record))
    refused(mallory, msgspec.structs.replace(place, record=json.dumps(plain).encode()), RmgrError)


def test_every_field_of_records_and_blocks_with_every_hostile_value(cluster: DevCluster, mallory: Client, tmp_path: Path) -> None:
    """Through the door: whatever is let in was signed otherwise, so it does not run."""
    canary = tmp_path / "canary"
    touch = Command(argv=("/bin/sh", "-c", f"echo ran >> {shlex.quote(str(canary))}"))
    honest = mallory.place(draft("mallory", command=touch), [block()])
    plain = json.loads(honest.record)
    [(name, data)] = honest.blocks
    orders: list[m.Place] = []

    def say(**parts: Any) -> None:
        orders.append(msgspec.structs.replace(honest, id=1000 + len(orders), **parts))

    for field, label, _ in hostile.hostile(SAMPLES[Submission]):
        # A nonce leads to one submission, whatever else is said with it: each has its own.
        own = plain | {"nonce": uuid.uuid4().hex}
        say(record=hostile.spoilt_json(own, field, hostile.VALUES[label]))
    for _, _, spoilt in hostile.hostile(SAMPLES[BlockData]):
        say(record=json.dumps(plain | {"nonce": uuid.uuid4().hex}).encode(), blocks=[(name, spoilt)])
    for crooked in ("", "x", "9" * 67, name.replace("1", "\u0661"), f"../{name}", name + "1", name[:-1], "x" * 300):
        say(record=json.dumps(plain | {"nonce": uuid.uuid4().hex}).encode(), blocks=[(crooked, data)])
    # Frames of their own length: what a decoder of whole messages refuses would end the stream.
    mallory.say(*orders)
    answers = lambda: mallory.of(m.Placed, m.Refused)  # noqa: E731
    eventually(lambda: mallory.is_over or len(answers()) >= len(orders), lambda: f"{len(answers())} of {len(orders)} are answered")
    assert not mallory.is_over, mallory.error
    taken = [one.number for one in mallory.of(m.Placed)]
    assert len(mallory.of(m.Refused)) > len(orders) * 0.5
    for number in taken:
        with suppress(NotFound):
            mallory.ask(q.CancelSubmission(number=number))
    placed = mallory.open()
    tails, told = mallory.of(m.Dead), 0
    for _, _, spoilt in hostile.hostile(SAMPLES[Tail]):
        kept = mallory.keep(placed.number, is_owned=True)
        mallory.say(m.Grow(kept, spoilt, [(name, data)], [], False, False))
        told += 1
    for _, _, spoilt in hostile.hostile(SAMPLES[Fragment]):
        kept = mallory.keep(placed.number, is_owned=True)
        mallory.say(m.Grow(kept, encode_record(Tail(next=1, enqueued=unique())), [], [spoilt], False, False))
        told += 1
    dead = lambda: len(mallory.of(m.Dead)) - len(tails)  # noqa: E731
    eventually(lambda: mallory.is_over or dead() >= told * 0.9, lambda: f"{dead()} of {told} are refused")
    assert not mallory.is_over, mallory.error
    assert mallory.ask(q.ReadRecord(number=placed.number)).tail.next <= 1
    number = mallory.submit(draft("mallory"), [block()]).submission.id
    eventually(lambda: ends(cluster, number), "his honest work runs")
    # What was let in had a value that is as good as the honest one, and is signed as such; all else was never run.
    ran = canary.read_text().count("ran") if canary.exists() else 0
    assert ran <= len(taken)


def test_a_stream_begins_with_a_hello_and_what_is_no_word_ends_it(
    cluster: DevCluster, gateway: GatewayProcess, bundles: dict[str, Path]
) -> None:
    mine, number = Credentials.load(bundles["mallory"]), cluster.snapshot().cluster_id
    hello = m.Hello(m.VERSION, GUID, "ann", "h", 1, 1)
    for words, kind in (
        ([m.Bye()], InvalidRecord),
        ([b"\xc1"], InvalidRecord),
        ([hello, hello], InvalidRecord),
        ([hello, b"x" * (m.MAX_BYTES + 1)], InvalidRecord),
        ([hello, b"\x91" * 100_000], InvalidRecord),
        ([m.Hello(m.VERSION + 1, GUID, "ann", "h", 1, 1)], VersionMismatch),
    ):

        def told(words: list[Any] = words) -> RmgrError | None:
            with Handmade(gateway.endpoint, mine, number, hello=False) as client:
                client.say(*words)
                error = client.ended()
            return None if isinstance(error, Throttled) else error  # he has said too much in the tests before this one

        assert isinstance(eventually(told, "the stream ends"), kind), words


# -- admission -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "error", "match"),
    [
        ({"queue": "anns"}, PermissionDenied, "mallory may not submit to queue anns"),
        ({"queue": "shut"}, StateConflict, "queue shut is closed"),
        ({"queue": "small", "request": Request(cores=2)}, Infeasible, "more than queue small allows"),
        ({"queue": "small", "priority": 6}, UsageError, "priority 6 is not between"),
        ({"queue": "batch"}, UsageError, "places the jobs of queue batch"),
        ({"queue": "nowhere"}, RmgrError, "nowhere"),
        ({"queue": "../default"}, RmgrError, None),
    ],
    ids=str,
)
def test_the_settings_of_queues_hold_for_whoever_asks(
    mallory: Client, record: dict[str, Any], error: type[RmgrError], match: str | None
) -> None:
    made = replace(draft("mallory"), **record)
    key = {"cores": made.request.cores, "priority": made.priority}
    refused(mallory, mallory.place(made, [block(**key)]), error, match=match)


def test_ann_submits_where_she_may(people: dict[str, Client]) -> None:
    for record in ({"queue": "anns"}, {"queue": "small", "priority": 5}):
        people["ann"].open(**record)


def test_a_submission_grows_in_its_own_queue_and_by_what_it_asked_for(cluster: DevCluster, mallory: Client) -> None:
    placed = mallory.open()
    number, tail = placed.number, m.submitted_of(placed).tail
    for told, key in (
        ({}, {"priority": 1}), ({}, {"cores": 2}), ({}, {"cores": 0}), ({}, {"first": 1}), ({"next": 10**9}, {}), ({"next": 2}, {}),
        ({"reigns": ((0, "x"),)}, {}), ({"enqueued": "x" * 65}, {}),
    ):  # fmt: skip
        with pytest.raises(REFUSED):
            grown(mallory, number, replace(tail, **({"next": 1, "enqueued": unique()} | told)), [block(number, **key)])
    assert mallory.ask(q.ReadRecord(number=number)).tail.next == 0
    good = replace(tail, next=1, enqueued=unique())
    kept = mallory.keep(number, is_owned=True)
    assert grown(mallory, number, good, [block(number)], kept=kept).next == 1
    # The same again is the same; the same with another stamp is a task that is there already.
    assert mallory.grow(mallory.keep(number, is_owned=True), good, mallory.signer.sealer(mallory.record(number))([block(number)])).next == 1
    with pytest.raises(InvalidRecord):
        grown(mallory, number, replace(good, enqueued=unique()), [block(number)])
    eventually(lambda: ends(cluster, number), "it runs")
    assert len(ends(cluster, number)) == 1


# -- placing, ordering -----------------------------------------------------------------------------------------------------------


def test_nobody_hands_over_what_only_the_leader_places(cluster: DevCluster, mallory: Client) -> None:
    """A block that would go straight to a node, if the client could say so."""
    for record, data in (
        ({}, {"allocation": Allocation(shares=(("n1", 1),), threads=1)}),
        ({"request": Request(resources={"gpu": 1})}, {}),
        ({"queue": "stopped"}, {}),
    ):
        placed = mallory.open(**record)
        kept = mallory.keep(placed.number, is_owned=True, is_fresh=True)
        [(key, made)] = mallory.signer.sealer(m.submitted_of(placed).submission)([block(placed.number)])
        new = replace(m.submitted_of(placed).tail, next=1, enqueued=unique())
        alone = {"is_alone": True, "leaves_keys": not data}
        mallory.say(m.grow_of(kept, Growth(tail=new, blocks=[(key, changed(made, **data))], **alone)))
        answer = mallory.wait(m.Dead, m.DidGrow, kept=kept)
        assert isinstance(answer, m.Dead) or not answer.taken, answer
        running = cluster.coordinator.children(paths.running_node("n1")).result(60) or []
        assert not [name for name, key in paths.blocks_in(running) if key.submission == placed.number]


def test_what_ran_is_told_by_nodes(mallory: Client) -> None:
    placed = mallory.open()
    tail = m.submitted_of(placed).tail
    for fragment in (
        Fragment(node="n1", attempt=0, outcomes=(Outcome(index=0, state=State.COMPLETED),)),
        Fragment(attempt=0, outcomes=(Outcome(index=0, value=b"forged"),)),
        Fragment(attempt=1, outcomes=(Outcome(index=0, state=State.CANCELLED, reason=Reason.USER_CANCEL),)),
        Fragment(attempt=0, outcomes=(Outcome(index=0, state=State.CANCELLED, reason=Reason.OPERATOR_CANCEL),)),
        Fragment(attempt=0, outcomes=(), ranges=((State.COMPLETED, 0, 1),), row="frag/x"),
    ):
        with pytest.raises(REFUSED):
            grown(mallory, placed.number, replace(tail, next=1, enqueued=unique()), [], ended=[fragment])
    assert mallory.ask(q.CountFragments(number=placed.number)) == 0


# -- others' work ----------------------------------------------------------------------------------------------------------------


def test_nobody_follows_extends_or_takes_over_work_of_others(people: dict[str, Client], mallory: Client) -> None:
    placed = people["ann"].open()
    number, tail = placed.number, m.submitted_of(placed).tail
    for owned, wants in ((False, False), (True, False), (False, True), (True, True)):
        kept = mallory.keep(number, is_owned=owned, wants_ownership=wants)
        new = replace(tail, next=1, enqueued=unique(), complete=True)
        mallory.say(m.grow_of(kept, Growth(tail=new, blocks=[block(number)])), m.AskTail(kept, 1))
        assert "belongs to ann" in mallory.wait(m.Dead, kept=kept).fault.message
        assert not mallory.of(m.TailIs, m.RecordIs, m.Fragments, m.Owned, m.DidGrow, kept=kept)
    before = people["ann"].ask(q.ReadRecord(number=number))
    orders: list[Callable[[int], q.Question[Any]]] = [
        lambda at: q.ReadRecord(number=at),
        lambda at: q.ReadTasks(number=at),
        lambda at: q.ReadFragments(number=at),
        lambda at: q.ReadNonce(number=at),
        lambda at: q.CancelSubmission(number=at),
        lambda at: q.HoldSubmission(number=at),
        lambda at: q.ReleaseSubmission(number=at),
        lambda at: q.UpdateSubmission(number=at, terms=Terms(name="his")),
        lambda at: q.CancelTasks(number=at, ranges=((0, 1),)),
        lambda at: q.KillRunning(number=at),
        lambda at: q.MoveTask(number=at, guid=uuid.uuid4().hex),
        lambda at: q.ReadMoved(number=at, guid=uuid.uuid4().hex),
    ]
    for order in orders:
        with pytest.raises(PermissionDenied, match="belongs to ann"):
            mallory.ask(order(number))
    assert people["ann"].ask(q.ReadRecord(number=number)) == before


def test_work_that_was_taken_with_the_guid_of_its_owner_stays_hers(people: dict[str, Client], mallory: Client) -> None:
    """He says hello with the guid under which ann's client looks after her work, and everything that she has said."""
    ann = people["ann"]
    place = ann.place(draft("ann"), [block()], complete=False, is_owned=True)
    number = ann.order(place).number
    with Client(mallory.endpoint, mallory.credentials, "", guid=ann.guid) as again:
        with pytest.raises(PermissionDenied, match="cannot submit for ann"):
            again.order(msgspec.structs.replace(place, is_repeat=True))
        kept = again.keep(number, is_owned=True)
        assert "belongs to ann" in again.wait(m.Dead, kept=kept).fault.message
        his = replace(draft("mallory"), nonce=json.loads(place.record)["nonce"])
        assert again.submit(his, [block()], signs=False, is_owned=True).submission.id != number
    assert ann.record(number).user == "ann"


def test_what_an_operator_holds_stays_held_whoever_made_the_client(people: dict[str, Client], mallory: Client) -> None:
    placed = mallory.open(phase=Phase.HELD, reason=Reason.USER_HOLD)
    people["olga"].ask(q.HoldSubmission(number=placed.number, detail="disk"))
    held = mallory.record(placed.number)
    assert (held.phase, held.reason, held.by) == (Phase.HELD, "OPERATOR_HOLD", "olga")
    assert "operators alone release it" in mallory.ask(q.ReleaseSubmission(number=placed.number)).unchanged
    new = replace(m.submitted_of(placed).tail, next=1, enqueued=unique())
    grown(mallory, placed.number, new, [block(placed.number)])
    assert mallory.record(placed.number) == held
    assert mallory.ask(q.CountFragments(number=placed.number)) == 0
    people["olga"].ask(q.ReleaseSubmission(number=placed.number))
    eventually(lambda: mallory.ask(q.CountFragments(number=placed.number)), "it runs then")


def test_only_ones_own_certificate_is_published(cluster: DevCluster, people: dict[str, Client], mallory: Client) -> None:
    pem = mallory.credentials.certificate_pem
    mallory.publish()
    before = cluster.coordinator.children(paths.IDENTITIES).result(60)
    for crooked in (b"x" * 10_000, people["ann"].credentials.certificate_pem + pem, b"", b"\xff" * 99, b"x" * 20_000):
        with pytest.raises(RmgrError):
            mallory.ask(q.PublishCertificate(pem=crooked))
    mallory.ask(q.PublishCertificate(pem=pem + b"\n" * 5000))  # what is published is what the gateway makes of it
    with pytest.raises(PermissionDenied, match="not the certificate of your own key"):
        mallory.ask(q.PublishCertificate(pem=people["ann"].credentials.certificate_pem))
    assert cluster.coordinator.children(paths.IDENTITIES).result(60) == before
    mallory.ask(q.PublishCertificate(pem=pem))  # it is there already


def test_the_guid_of_anothers_dead_submitter_does_not_live_on(
    cluster: DevCluster, people: dict[str, Client], mallory: Client, tmp_path: Path
) -> None:
    """Its owner is dead: the leader tries again what has failed, and does not wait until he has had the time to do it."""
    cluster_id, ann = cluster.snapshot().cluster_id, people["ann"]
    go = tmp_path / "go"
    fails = Command(argv=("/bin/sh", "-c", f"until [ -e {shlex.quote(str(go))} ]; do sleep 0.1; done; exit 1"))
    failing = draft("ann", command=fails, retries=1, backoff_us=0)

    def users(guid: str) -> list[str]:
        names = cluster.coordinator.children(paths.SUBMITTERS).result(60) or []
        found = [cluster.coordinator.get(f"{paths.SUBMITTERS}/{name}").result(60) for name in names if paths.entry_guid(name) == guid]
        return [decode_record(one.data, SubmitterEntry, guid).user for one in found if one is not None]

    with Client(mallory.endpoint, ann.credentials, cluster_id) as dead:
        number = dead.submit(failing, [(block()[0], BlockData(retries=1))], is_owned=True).submission.id
        dead.bye()
    with Client(mallory.endpoint, mallory.credentials, cluster_id, guid=dead.guid) as same:
        same.open()
        eventually(lambda: users(dead.guid) == ["mallory"], lambda: f"his entry alone is there, in his name: {users(dead.guid)}")
        begun_s = time.monotonic()
        go.touch()
        eventually(lambda: ann.ask(q.CountFragments(number=number)), "it was tried twice", within_s=60)
        assert ann.ask(q.ReadFragments(number=number)).fragments[0].attempt == 2
        assert time.monotonic() - begun_s < PATIENCE_S


# -- filling ---------------------------------------------------------------------------------------------------------------------


def test_one_user_leaves_room_for_the_requests_and_entries_of_others(
    cluster: DevCluster, people: dict[str, Client], mallory: Client
) -> None:
    """He asks the leader for thousands of things, on many threads, and comes and goes; ann's requests are answered meanwhile."""
    number = mallory.open().number
    over = threading.Event()
    told: list[RmgrError] = []

    def asks() -> None:
        while not over.is_set():
            try:
                mallory.ask(q.MoveTask(number=number, guid=uuid.uuid4().hex), timeout_s=5.0)
            except RmgrError as error:
                told.append(error)

    def comes() -> None:
        while not over.is_set():
            with suppress(RmgrError, TimeoutError), Client(mallory.endpoint, mallory.credentials, "", connect_timeout_s=2.0) as client:
                client.order(client.place(draft("mallory"), complete=False, is_owned=True, signs=False), timeout_s=5.0)

    threads = [threading.Thread(target=one) for one in (*[asks] * 12, *[comes] * 4)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(2.0)  # the flood alone, until whatever it fills is full
        ann = people["ann"]
        hers = ann.submit(draft("ann", phase=Phase.HELD, reason=Reason.USER_HOLD), [block(count=3)]).submission.id
        for at in range(3):
            with FairTimer() as timer:
                assert ann.ask(q.CancelTasks(number=hers, ranges=((at, 1),))).ended == ((at, 1),)
            assert timer.elapsed_s < 10.0
    finally:
        over.set()
        for thread in threads:
            thread.join(90)
    assert all(isinstance(one, RmgrError) for one in told)
    most = UserLimits().sessions + len(people) + len(threads)  # as many owners linger as a user may have clients
    entries = cluster.coordinator.children(paths.SUBMITTERS).result(60) or []
    assert len(entries) <= most, entries
    assert len(cluster.coordinator.children(paths.REQUESTS).result(60) or []) < 2000
