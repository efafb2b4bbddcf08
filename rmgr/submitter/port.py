"""What an application asks of a Submitter, in terms of submissions, blocks and fragments (`WorkPort`).

    client (futures, pickles) ──> WorkPort ──> DirectWork ──────────────────> ZooKeeper, data store
                                     └───────> RemoteWork ── gRPC ──> gateway ──> DirectWork

Blocks are packed and signed above the port, and fragments are verified above it: who carries the work out on the way can neither run
code in a user's name nor forge a result. Below it are znodes. Blocking calls may be made from any thread but the Submitter's own; a
`Kept` and its listener live on that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias

from rmgr.coord import validity
from rmgr.coord.ops.work import Block
from rmgr.coord.protocol.ports import SessionState
from rmgr.errors import InvalidRecord, RmgrError, UsageError
from rmgr.model.cluster.node import NodeRecord
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.block import Fragment
from rmgr.model.tasks.submission import Submission, Tail
from rmgr.model.wire.line import ClaimStage
from rmgr.runtime import machine

#: `Read.zxid` of a fragment that lay in a page: it left ZooKeeper before whatever was revoked since.
PAGED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Record and tail of a submission, with their versions."""

    submission: Submission
    version: int
    tail: Tail
    tail_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted(Stored):
    """A durable submission. created: by this call; else its token, or its nonce, was known already."""

    created: bool


#: Signs a record that has its nonce, and its first blocks.
Sign = Callable[[Submission, Sequence[Block]], tuple[Submission, Sequence[Block]]]


def unsigned(record: Submission, blocks: Sequence[Block]) -> tuple[Submission, Sequence[Block]]:
    """What an open cluster does."""
    return record, blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A submission to be made: its record, its first blocks, both without a number (`prepared`), and how many tasks they are.

    complete: no more will follow. held: the blocks are set aside although the submission is open (a cap on those that run).
    is_owned: the Submitter looks after it, else the leader does. Of one that is owned, blocks for which its queue has no room are left
        out: its `tail.next` is 0 then.
    """

    draft: Submission
    blocks: Sequence[Block] = ()
    tasks: int = 0
    complete: bool = False
    held: bool | None = None
    is_owned: bool = False


def prepared(order: Order, sign: Sign = unsigned) -> Order:
    """The order with a nonce, and signed: it may be sent again and again, whatever number it gets.

    Raises: UsageError for what no Starter would believe. Cost: 0.3 ms where it is signed.
    """
    record = replace(order.draft, id=0, owner="", nonce=machine.guid(), signed_s=int(machine.wall_s()))
    try:
        validity.check(replace(record, id=1), where="the submission")
    except InvalidRecord as error:
        raise UsageError(f"this cannot be submitted: {error.message}", hint="rmgr submit --help, or help(rmgr.TaskQueue)") from None
    record, blocks = sign(record, order.blocks)
    return replace(order, draft=record, blocks=blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What an owner adds to a submission in one commit. One is under way at a time; sent again, it is committed once.

    tail: as it leaves it; `enqueued` is new for each. ended: outcomes of tasks that end before they ever waited.
    is_alone: all that was sent before has ended, so a single block may go straight to a node. leaves_keys: the node is to claim its
    output keys; if it cannot go there it is not committed.
    """

    tail: Tail
    blocks: Sequence[Block] = ()
    ended: Sequence[Fragment] = ()
    is_alone: bool = False
    leaves_keys: bool = False


class Grown(NamedTuple):
    """It is durable. tail: as it is now; another one than was sent if the leader has completed the submission meanwhile."""

    tail: Tail


class NotTaken(NamedTuple):
    """No node takes a block that leaves its keys: nothing was committed."""


Growing: TypeAlias = "Future[Grown | NotTaken]"


class Read(NamedTuple):
    """A fragment that was read. zxid: of its commit. data: as it was written. is_believed: its seal was verified in this process."""

    number: int
    fragment: Fragment
    zxid: int
    data: bytes
    is_believed: bool = False


class KeptListener(Protocol):
    """Hears of one submission, on the Submitter's thread."""

    def on_fragments(self, fragments: Sequence[Read]) -> None:
        """The next ones, in their order, each once."""

    def on_tail(self, tail: Tail) -> None:
        """Its owner has extended it, or completed it."""

    def on_record(self, record: Submission | None, version: int) -> None:
        """The record has changed, or is gone (None): the submission was collected."""

    def on_owned(self, stored: Stored) -> None:
        """It is this Submitter's own from here: its owner was gone."""

    def on_full(self, most: int) -> None:
        """Its growth waits: its queue holds its maximum of so many blocks. 0: no more."""

    def on_trouble(self, error: RmgrError) -> None:
        """Its growth is tried again and again because of this."""

    def on_dead(self, error: RmgrError) -> None:
        """Nothing more will come."""


class Kept(Protocol):
    """One submission that a Submitter looks after (its owner's) or only follows."""

    @property
    def most_left(self) -> int:
        """Tasks of the next single block whose output keys may be left to the node that runs it; 0: none, they are claimed before."""

    def grow(self, growth: Growth) -> Growing:
        """Commits it, however long that takes; unresolved when the submission is dead. Raises nothing."""

    def announce(self, growth: Growth) -> None:
        """It will be given to `grow` as soon as its keys are claimed: its node may read its inputs meanwhile. A hint."""

    def claimed(self, stage: ClaimStage) -> None:
        """How far the keys are claimed that the last growth has left. A hint."""

    def read_tail(self) -> Future[Tail]:
        """The tail as it is now. Raises (in the future): NotFound, Unavailable."""

    def nudge(self) -> None:
        """Looks now, because of a hint from elsewhere."""

    def leave(self) -> None:
        """Nothing is left to do for it. Idempotent."""


class WorkPort(Protocol):
    """A Submitter, for one owner of submissions. guid: its name as one: part of the pointers to outputs."""

    @property
    def guid(self) -> str: ...

    @property
    def session_state(self) -> SessionState:
        """Whether the coordination service answers."""

    @property
    def session_timeout_s(self) -> float:
        """How long a Submitter that is silent is taken to live."""

    def wait_ready(self, timeout_s: float) -> None:
        """Waits until it can work. Raises: NotConnected, CoordinationUnavailable; PermissionDenied, by a gateway."""

    def settings(self, *, timeout_s: float = 10.0) -> ClusterSettings:
        """Queues and limits, at most 5 s old."""

    def nodes(self, *, timeout_s: float = 10.0) -> list[NodeRecord]:
        """Records of the nodes, at most 5 s old."""

    def submit(self, order: Order, *, timeout_s: float) -> Submitted:
        """SUBMIT. The same token, or nonce, again gives the same number.

        Raises: UsageError for what no Starter would believe; PermissionDenied; WrongCluster; CoordinationUnavailable when it was surely not
            committed; SubmitUnknown when that is not known (the same token is safe).
        """

    def submit_many(self, orders: Sequence[Order], *, timeout_s: float) -> list[Submitted]:
        """Each a complete submission without owner, with a token; in this order, unless somebody else submits meanwhile.

        Raises: as `submit`; what was made before stays.
        """

    def read(self, number: int, *, timeout_s: float) -> Stored:
        """Record and tail. Raises: NotFound, CoordinationUnavailable."""

    def keep(
        self, stored: Stored, listener: KeptListener, *, is_owned: bool, wants_ownership: bool = False, is_fresh: bool = False
    ) -> Kept:
        """Looks after it, or follows it from its beginning. On the Submitter's thread.

        wants_ownership: takes it over once its owner is gone. is_fresh: it was made just now.
        """

    def close(self, *, timeout_s: float) -> None:
        """Lets go of everything; what is durable goes on without it."""
