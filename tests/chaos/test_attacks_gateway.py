"""A user whose client is of his own making, against a real gateway: what no client of rmgr sends is refused, and others' work goes on.

The attacker is mallory, a plain user with a certificate of the cluster; ann works beside him, through the same gateway.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rmgr.adapters.identity.trust import publish
from rmgr.client.connection import Connection, connect
from rmgr.client.identity.signing import Signer
from rmgr.client.taskqueue import TaskQueue
from rmgr.config import ClusterConfig, Config
from rmgr.coord.decisions.keeping import PATIENCE_S
from rmgr.coord.ops import join as join_ops
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import operator as operator_ops
from rmgr.coord.ops import owner as owner_ops
from rmgr.coord.ops import request as request_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Create, Delete, Exists, Multi, Op, Set
from rmgr.coord.protocol.records import decode_fragment, decode_record, encode_block, encode_record
from rmgr.daemons.gateway.loose import MOST
from rmgr.dev.cluster import DevCluster
from rmgr.errors import Infeasible, InvalidRecord, PermissionDenied, RmgrError, StateConflict, UsageError
from rmgr.model.base.resources import Request
from rmgr.model.base.states import Reason
from rmgr.model.cluster.identity import Role
from rmgr.model.cluster.node import InboxOrder, NodeRecord, OrderKind, SubmitterEntry
from rmgr.model.cluster.queue import ClusterSettings, QueueSpec
from rmgr.model.tasks.block import NO_SEQ, BlockData, BlockKey
from rmgr.model.tasks.placing import Allocation
from rmgr.model.tasks.request import CancelRequest
from rmgr.model.tasks.submission import Command, Submission, Tail, Work
from tests.harness.attacker import changed, unique
from tests.harness.gateway_process import GatewayProcess
from tests.harness.submitted import submit
from tests.harness.waiting import eventually

REFUSED = (PermissionDenied, InvalidRecord)
QUEUES = (
    QueueSpec(name="anns", users=("ann",)),
    QueueSpec(name="shut", state="closed"),
    QueueSpec(name="small", max_cores=1, max_priority=5),
    QueueSpec(name="stopped", state="stopped"),
)


class Client:
    """Somebody's way through the gateway, and what he makes by hand."""

    def __init__(self, cluster: DevCluster, endpoint: str, role: Role, name: str) -> None:
        assert cluster.security is not None
        self.name = name
        directory = str(cluster.security.bundle(role, name))
        config = Config(cluster=ClusterConfig(gateway=endpoint))
        self.connection: Connection = connect(config=replace(config, security=replace(config.security, dir=directory)))
        coordinator = self.connection.coordinator
        assert coordinator is not None
        self.zk = coordinator
        self.credentials = _credentials(directory)
        self.cluster_id = cluster.snapshot().cluster_id

    @property
    def signer(self) -> Signer:
        return Signer(self.credentials, self.cluster_id, ttl_s=600.0)

    def commit(self, multi: Multi) -> Any:
        return self.zk.commit(multi).result(60)

    def get(self, path: str, kind: Any) -> tuple[Any, int]:
        found = self.zk.get(path).result(60)
        assert found is not None
        return decode_record(found.data, kind, path), found.version

    def submitted(self, **record: Any) -> Submission:
        """An honest submission of his that has not ended: nothing was enqueued yet."""
        made = submit(self.zk, draft(self.name, **record), owner="", deadline_s=time.monotonic() + 60, signer=self.signer)
        return made.submission

    def made(self, change: Callable[[Submission], Submission], *blocks: tuple[dict[str, Any], dict[str, Any]]) -> Multi:
        """A SUBMIT of the number that is due, with whatever he likes in it."""
        number, version = self.get(paths.IDS, int)
        record = change(replace(draft(self.name), id=number, nonce=uuid.uuid4().hex, signed_s=int(time.time())))
        plain = [block(record.id, **key) for key, _ in blocks] if blocks else [block(record.id)]
        sealed = self.signer.sealer(record)(plain)
        data = [(key, changed(made, **other)) for (key, made), (_, other) in zip(sealed, blocks or [({}, {})], strict=True)]
        return ops.submit(
            record,
            ids_version=version,
            tail=Tail(next=1, complete=True),
            blocks=data,
            make_bucket=False,
        )


def _credentials(directory: str) -> Any:
    from rmgr.adapters.identity.credentials import Credentials

    return Credentials.load(directory)


def draft(user: str, **record: Any) -> Submission:
    told = {"id": 0, "name": "a", "queue": "default", "work": Work.COMMAND, "command": Command(argv=("/bin/true",)), "submitted_us": 1}
    return Submission(user=user, **(told | record))


def block(number: int, **key: Any) -> tuple[BlockKey, BlockData]:
    told = {"priority": 0, "seq": NO_SEQ, "first": 0, "count": 1, "attempt": 1, "cores": 1, "memory_mib": 0}
    return BlockKey(submission=number, **(told | key)), BlockData()


@pytest.fixture(scope="module")
def cluster(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    where = tmp_path_factory.mktemp("attacked")
    made = DevCluster(where / "cluster", nodes=1, watchdogs=1, session_timeout_s=6.0, heap_mb=128, secured=True)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def gateway(cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(cluster.daemon_environment("submitter", "g1"), tmp_path_factory.mktemp("gateway")) as made:
        yield made


@pytest.fixture(scope="module")
def people(cluster: DevCluster, gateway: GatewayProcess) -> Iterator[dict[str, Client]]:
    roles = {"ann": Role.USER, "mallory": Role.USER, "olga": Role.OPERATOR}
    made = {name: Client(cluster, gateway.endpoint, role, name) for name, role in roles.items()}
    olga = made["olga"]
    settings, version = olga.get(paths.CONFIG, ClusterSettings)
    olga.zk.ensure([path for queue in QUEUES for path in (paths.pending(queue.name), paths.held(queue.name))], timeout_s=60)
    done = olga.commit(operator_ops.set_settings(replace(settings, queues=(*settings.queues, *QUEUES)), version))
    assert isinstance(done, Committed), done
    made["ann"].submitted()  # the directory of the first thousand is there
    try:
        yield made
    finally:
        for client in made.values():
            client.connection.close()


@pytest.fixture(scope="module")
def mallory(people: dict[str, Client]) -> Client:
    publish(people["mallory"].zk, people["mallory"].credentials)
    return people["mallory"]


@pytest.fixture(autouse=True)
def others_go_on(people: dict[str, Client], request: pytest.FixtureRequest) -> Iterator[None]:
    """After each attack ann's work runs as before."""
    yield
    with TaskQueue(abs, connection=people["ann"].connection, name=unique()) as queue:
        assert queue.submit_call(-7).result(60) == 7


def refused(client: Client, multi: Multi, *kinds: type[RmgrError], match: str | None = None) -> None:
    before = client.get(paths.IDS, int)
    with pytest.raises(kinds or REFUSED, match=match):
        client.commit(multi)
    if multi.name == "SUBMIT":
        assert client.get(paths.IDS, int)[0] == before[0]


def bare(name: str, *given: Op) -> Multi:
    return Multi(name=name, ops=given, proof=Exists(given[-1].path))


# -- submitting ------------------------------------------------------------------------------------------------------------------


def test_what_he_submits_honestly_by_hand_runs(mallory: Client) -> None:
    multi = mallory.made(lambda record: record)
    done = mallory.commit(multi)
    assert isinstance(done, Committed), done
    number = int(multi.ops[2].path.rpartition("/")[2])
    eventually(lambda: mallory.zk.get(paths.fragment(number, 0)).result(60), "it has ended")


@pytest.mark.parametrize("number", [9_999_999_999, 9_999_999_998, 1, 10**12])
def test_nobody_takes_a_number_that_is_not_due(mallory: Client, number: int) -> None:
    refused(mallory, mallory.made(lambda record: replace(record, id=number)))
    multi = mallory.made(lambda record: record)
    skipped = replace(multi, ops=(replace(multi.ops[0], data=b"%d" % number), *multi.ops[1:]))  # type: ignore[call-arg]
    refused(mallory, skipped)


@pytest.mark.parametrize(
    "key", [{"cores": 0}, {"count": 0}, {"cores": 99_999}, {"attempt": 0}, {"attempt": 999_999}, {"priority": 1_000_000},
            {"first": 5_000_000_000}, {"count": 999}, {"memory_mib": 7}]
)  # fmt: skip
def test_a_crooked_block_does_not_pass(mallory: Client, key: dict[str, int]) -> None:
    refused(mallory, mallory.made(lambda record: record, (key, {})))


@pytest.mark.parametrize(
    "data", [{"allocation": Allocation(shares=(("n1", 1),), threads=1)}, {"done": 1}, {"incarnation": 3}, {"row": "../../x"},
             {"row": f"args/{1:010d}/{0:010d}/{'a' * 64}"}, {"base": -1}, {"base": 1 << 60}, {"retries": -1}, {"payloads": (b"", b"")},
             {"past": ("x",)}, {"stamp": "x" * 9000}, {"function": "../x"}, {"started": 1 << 62}]
)  # fmt: skip
def test_a_crooked_blocks_data_do_not_pass(mallory: Client, data: dict[str, Any]) -> None:
    refused(mallory, mallory.made(lambda record: record, ({}, data)))


@pytest.mark.parametrize(
    "record", [{"spec_sha256": "../../x"}, {"user": "ann"}, {"name": "\0"}, {"closed_us": 5}, {"phase": "CLOSED"}, {"phase": "CANCELLED"},
               {"max_running": -1}, {"retries": -5}, {"owner": "x/../.."}, {"request": Request(cores=0)}, {"request": Request(cores=-1)},
               {"format": 2}, {"priority": 1 << 70}, {"grace_us": -1}, {"command": None}, {"nonce": ""},
               {"nonce": "x" * 32}, {"signed_s": -1}, {"signed_s": 1}, {"signed_s": int(time.time()) + 7200}]
)  # fmt: skip
def test_a_crooked_record_does_not_pass(mallory: Client, record: dict[str, Any]) -> None:
    refused(mallory, mallory.made(lambda made: replace(made, **record)), RmgrError)


def test_nothing_of_a_submission_is_missing_and_nothing_added(mallory: Client) -> None:
    for left_out in (paths.done, paths.failed, paths.tail, paths.gate, paths.sub):
        multi = mallory.made(lambda record: record)
        number = int(multi.ops[2].path.rpartition("/")[2])
        refused(mallory, replace(multi, ops=tuple(op for op in multi.ops if op.path != left_out(number))))
    multi = mallory.made(lambda record: record)
    refused(mallory, replace(multi, proof=Exists("/")))
    refused(mallory, replace(multi, ops=(*multi.ops, multi.ops[-1])))
    refused(mallory, replace(multi, ops=(*multi.ops, Create(f"{paths.SUBS}/9999999"))))
    blind = replace(multi, ops=(replace(multi.ops[0], version=-1), *multi.ops[1:]))  # type: ignore[call-arg]
    refused(mallory, blind)


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
    refused(mallory, mallory.made(lambda new: replace(new, **record), (key, {})), error, match=match)


def test_ann_submits_where_she_may(people: dict[str, Client]) -> None:
    assert people["ann"].submitted(queue="anns").queue == "anns"
    assert people["ann"].submitted(queue="small", priority=5).priority == 5


def test_a_submission_grows_in_its_own_queue_and_by_what_it_asked_for(mallory: Client) -> None:
    record = mallory.submitted()
    _, version = mallory.get(paths.tail(record.id), Tail)

    def grows(queue: str = "default", tail: dict[str, Any] | None = None, **key: Any) -> Multi:
        blocks = mallory.signer.sealer(record)([block(record.id, **key)])
        told = Tail(**({"next": 1, "enqueued": unique()} | (tail or {})))
        return ops.enqueue(record.id, queue, tail=told, tail_version=version, blocks=blocks, held=False)

    for multi in (
        grows("anns"), grows("small"), grows(priority=1), grows(cores=2), grows(cores=0), grows(first=1), grows(tail={"next": 10**15}),
        grows(tail={"next": 2}), grows(tail={"reigns": ((0, "x"),)}), grows(tail={"enqueued": "x" * 5000}),
    ):  # fmt: skip
        refused(mallory, multi)
    done = mallory.commit(grows())
    assert isinstance(done, Committed), done
    again = mallory.commit(grows())
    assert isinstance(again, Conflict), again


# -- placing, ordering -----------------------------------------------------------------------------------------------------------


def test_nobody_hands_over_what_only_the_leader_places(mallory: Client) -> None:
    node, node_version = mallory.get(paths.node("n1"), NodeRecord)
    for record, data in (
        (mallory.submitted(), {"allocation": Allocation(shares=(("n1", 1),), threads=1)}),
        (mallory.submitted(request=Request(resources={"gpu": 1})), {}),
        (mallory.submitted(queue="stopped"), {}),
    ):
        key, made = mallory.signer.sealer(record)([block(record.id)])[0]
        tail = Tail(next=1, enqueued=unique())
        multi = ops.hand(
            record.id, tail=tail, tail_version=0, key=key, data=changed(made, **data), node=node.node, node_version=node_version
        )
        refused(mallory, multi)
        loose = replace(multi, ops=(*multi.ops[:2], replace(multi.ops[2], version=-1), *multi.ops[3:]))  # type: ignore[call-arg]
        refused(mallory, loose)


@pytest.mark.parametrize("order", list(OrderKind))
def test_an_order_is_a_cancel_of_his_own_under_a_name_that_says_nothing(mallory: Client, order: OrderKind) -> None:
    record = mallory.submitted()
    key, _ = block(record.id)
    what = InboxOrder(order=order, submission=record.id, reason=Reason.USER_CANCEL)
    for guid in (paths.start_order("0" * 32, replace(key, seq=0)), paths.start_order("x", replace(key, seq=0)), "x", "../n1/x"):
        refused(mallory, leader_ops.order("n1", guid, what), RmgrError)
    if order is not OrderKind.CANCEL:
        refused(mallory, leader_ops.order("n1", "0" * 32, what), match="leader alone")
    refused(mallory, leader_ops.order("n1", "0" * 32, replace(what, extra={"block": "x"})))


def test_what_stands_in_a_record_is_not_rewritten(mallory: Client) -> None:
    record = mallory.submitted()
    _, version = mallory.get(paths.sub(record.id), Submission)
    for changes in ({"queue": "anns"}, {"priority": 9}, {"closed_us": 1}, {"name": "b"}):
        for gate in (None, True, False):
            refused(mallory, ops.set_record(replace(record, **changes), version=version, gate=gate))
    refused(mallory, owner_ops.take_ownership(replace(record, owner="x"), version, Tail(next=10**15), 0))
    refused(mallory, ops.set_record(replace(record, queue="anns", owner=""), version=version, gate=None))


def test_what_ran_is_told_by_nodes(mallory: Client) -> None:
    record = mallory.submitted()
    for path in (paths.fragment_prefix(record.id), paths.failed_range(record.id, 0, 1, 1)):
        for name in ("ENQUEUE", "GIVE_UP", "CANCEL_FAILED", "TAKE_OUT", "RESUBMIT"):
            with pytest.raises(REFUSED):
                mallory.commit(bare(name, Create(path, b"x", sequence="r-" in path)))


# -- filling ---------------------------------------------------------------------------------------------------------------------


def test_only_ones_own_certificate_is_published(people: dict[str, Client], mallory: Client) -> None:
    pem, mine = mallory.credentials.certificate_pem, mallory.credentials.identity.key_id
    before = people["ann"].zk.children(paths.IDENTITIES).result(60)
    for number in range(20):
        refused(mallory, join_ops.identify(f"{number:032x}", b"x" * 10_000))
    refused(mallory, join_ops.identify(mine, pem + b"\n" * 5000))
    refused(mallory, join_ops.identify(mine, pem + pem))
    refused(mallory, join_ops.identify("0" * 32, pem))
    ann = people["ann"].credentials
    refused(mallory, join_ops.identify(ann.identity.key_id, ann.certificate_pem), match="not the certificate of your own key")
    assert people["ann"].zk.children(paths.IDENTITIES).result(60) == before
    assert isinstance(mallory.commit(join_ops.identify(mine, pem)), Conflict)  # it is there already


def test_the_guid_of_anothers_dead_submitter_does_not_live_on(people: dict[str, Client], mallory: Client) -> None:
    ann, guid = people["ann"], uuid.uuid4().hex
    entry = owner_ops.enter(SubmitterEntry(guid=guid, host="h", pid=1, since_us=1))
    assert isinstance(mallory.commit(entry), Committed)
    [name] = [name for name in ann.zk.children(paths.SUBMITTERS).result(60) or [] if paths.entry_guid(name) == guid]
    assert ann.get(f"{paths.SUBMITTERS}/{name}", SubmitterEntry)[0].user == "mallory"
    # Its owner is dead: the leader tries again what has failed, and does not wait until he has had the time to do it.
    begun_s, record = time.monotonic(), draft("ann", command=Command(argv=("/bin/false",)), retries=1, backoff_us=0)
    more: dict[str, Any] = {"deadline_s": begun_s + 60, "signer": ann.signer, "tasks": 1, "complete": True}
    number = submit(ann.zk, record, owner=guid, blocks=[(block(0)[0], BlockData(retries=1))], **more).submission.id
    told = eventually(lambda: ann.zk.get(paths.fragment(number, 0)).result(60), "it was tried twice")
    assert decode_fragment(told.data).attempt == 2
    assert time.monotonic() - begun_s < PATIENCE_S


@pytest.mark.parametrize("name", ["ASK", "ENTER"])
def test_one_user_leaves_room_for_the_requests_and_entries_of_others(people: dict[str, Client], mallory: Client, name: str) -> None:
    number = mallory.submitted().id
    root, most = (paths.REQUESTS, MOST[paths.REQUESTS][0]) if name == "ASK" else (paths.SUBMITTERS, MOST[paths.SUBMITTERS][0])
    full = f"mallory has {most}, or "

    def one() -> Multi:
        guid = uuid.uuid4().hex
        if name == "ASK":
            return request_ops.ask(guid, CancelRequest(submission=number, tasks=((0, 1),)))
        return owner_ops.enter(SubmitterEntry(guid=guid, host="h", pid=1, since_us=1))

    asked = [mallory.zk.commit(one()) for _ in range(most + 300)]
    told = [str(error) for answer in asked if (error := answer.exception(60)) is not None]
    assert told
    assert all(full in words for words in told)
    there = people["ann"].zk.children(root).result(60) or []
    assert len(there) <= most + 100
    guid = uuid.uuid4().hex
    hers = request_ops.ask(guid, CancelRequest(submission=people["ann"].submitted().id, tasks=((0, 1),)))
    assert isinstance(people["ann"].commit(hers), Committed)
    eventually(lambda: people["ann"].get(paths.request(guid), CancelRequest)[0].answered, "hers is answered")


def test_nothing_else_is_filled_either(mallory: Client) -> None:
    crooked = [
        bare("ENTER", Create(paths.submitter("0" * 32), b"x" * 10_000, ephemeral=True, sequence=True)),
        owner_ops.enter(SubmitterEntry(guid="x", host="h", pid=1, since_us=1)),
        owner_ops.enter(SubmitterEntry(guid="0" * 32, host="h" * 9000, pid=1, since_us=1)),
        owner_ops.enter(SubmitterEntry(guid="0" * 32, host="h", pid=1, since_us=1, user="ann")),
        bare("ASK", Create(paths.request("0" * 32), b"{}" + b" " * 10_000)),
        bare("SUBMIT", Create(f"{paths.SUBS}/77")),
        bare("SUBMIT", Create(paths.token("0" * 64), b"1")),
        bare("SUBMIT", Create(paths.nonce("mallory", "0" * 32, 1), b"1")),
        bare("SUBMIT", Set(paths.IDS, b"9999999999", -1)),
        bare("GATE", Delete(paths.gate(1))),
        bare("ENQUEUE", ops.enter("default", *block(1), held=False)),
        bare("TAKE_OUT", Create(f"{paths.pending('default')}/x", encode_block(BlockData()))),
        bare("DRAIN", Create(paths.drain("n1"), encode_record(0))),
    ]
    for multi in crooked:
        refused(mallory, multi, RmgrError)
