"""What an application asks of a Submitter, in terms of submissions, blocks and fragments (`WorkPort`).

    client (futures, pickles) ──> WorkPort ──> DirectWork ──────────────────> ZooKeeper, data store
                                     └───────> RemoteWork ── gRPC ──> gateway ──> DirectWork

Blocks are packed and signed above the port, and fragments are verified above it, so a process below the port can neither run code in a
user's name nor forge a result. Znodes are known only below it. Blocking calls may come from any thread but the Submitter's own, on which
a `Kept` and its listener live.
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
from rmgr.model.block import Fragment
from rmgr.model.line import ClaimStage
from rmgr.model.node import NodeRecord
from rmgr.model.queue import ClusterSettings
from rmgr.model.submission import Submission, Tail, Work
from rmgr.runtime import machine

#: `Read.zxid` of a fragment from a page, which left ZooKeeper before any later revocation.
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
    """A durable submission. created: made by this call; False: its token or nonce was known already."""

    created: bool


def gone(number: int) -> Submitted:
    """Returns a submission, known by its token or nonce, that was collected meanwhile: only the number is left."""
    record = Submission(id=number, name="", user="", queue="", work=Work.COMMAND)
    return Submitted(submission=record, version=-1, tail=Tail(complete=True), tail_version=-1, created=False)


#: Signs a record that has its nonce, and its first blocks.
Sign = Callable[[Submission, Sequence[Block]], tuple[Submission, Sequence[Block]]]


def unsigned(record: Submission, blocks: Sequence[Block]) -> tuple[Submission, Sequence[Block]]:
    """Returns both unsigned, as in an open cluster."""
    return record, blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A submission to be made: its record, its first blocks, both without a number (`prepared`), and the number of its tasks.

    complete: no more tasks follow. held: sets the blocks aside although the submission is open (a cap on running tasks).
    is_owned: the Submitter looks after it, else the leader does. If it is owned, blocks for which its queue has no room are left
        out; then its `tail.next` is 0.
    """

    draft: Submission
    blocks: Sequence[Block] = ()
    tasks: int = 0
    complete: bool = False
    held: bool | None = None
    is_owned: bool = False


def prepared(order: Order, sign: Sign = unsigned) -> Order:
    """Returns the order with a nonce, and signed: it may then be sent again and again, whatever number it gets.

    Raises: UsageError for an order that no Starter would accept. Cost: 0.3 ms if it is signed.
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
    """What an owner adds to a submission in one commit. One is under way at a time; a growth sent twice is committed once.

    tail: the tail after the commit; `enqueued` is new for each growth. ended: outcomes of tasks that end before they were queued.
    is_alone: all earlier tasks have ended, so a single block may go straight to a node. leaves_keys: the node is to claim the output
    keys; if no node takes the block, nothing is committed.
    """

    tail: Tail
    blocks: Sequence[Block] = ()
    ended: Sequence[Fragment] = ()
    is_alone: bool = False
    leaves_keys: bool = False


class Grown(NamedTuple):
    """The growth is durable. tail: as it is now; differs from the sent one if the leader has completed the submission meanwhile."""

    tail: Tail


class NotTaken(NamedTuple):
    """No node takes a block whose output keys are left to the node: nothing was committed."""


Growing: TypeAlias = "Future[Grown | NotTaken]"


class Read(NamedTuple):
    """A fragment that was read. zxid: of its commit. data: as written. is_believed: this process has verified its seal."""

    number: int
    fragment: Fragment
    zxid: int
    data: bytes
    is_believed: bool = False


class KeptListener(Protocol):
    """Hears of one submission, on the Submitter's thread."""

    def on_fragments(self, fragments: Sequence[Read]) -> None:
        """Takes the next fragments, in order, each once."""

    def on_tail(self, tail: Tail) -> None:
        """The owner has extended or completed the submission."""

    def on_record(self, record: Submission | None, version: int) -> None:
        """The record has changed, or is gone (None): the submission was collected."""

    def on_owned(self, stored: Stored) -> None:
        """This Submitter owns the submission from now on, because the former owner was gone."""

    def on_full(self, most: int) -> None:
        """The growth waits because the queue holds its maximum of `most` blocks; 0: it waits no more."""

    def on_trouble(self, error: RmgrError) -> None:
        """The growth is retried because of this error."""

    def on_dead(self, error: RmgrError) -> None:
        """Nothing more will come."""


class Kept(Protocol):
    """One submission that a Submitter looks after (for its owner) or only follows."""

    @property
    def most_left(self) -> int:
        """Tasks of the next single block whose output keys may be left to its node; 0: keys must be claimed before."""

    def grow(self, growth: Growth) -> Growing:
        """Commits the growth, however long that takes; never resolved if the submission is dead. Raises nothing."""

    def announce(self, growth: Growth) -> None:
        """Announces a growth that `grow` gets once its keys are claimed, so that its node can read inputs meanwhile. A hint."""

    def claimed(self, stage: ClaimStage) -> None:
        """Tells how far the keys left by the last growth are claimed. A hint."""

    def read_tail(self) -> Future[Tail]:
        """Reads the current tail. Raises (in the future): NotFound, Unavailable."""

    def nudge(self) -> None:
        """Looks now, because of a hint from elsewhere."""

    def leave(self) -> None:
        """Stops looking after the submission. Idempotent."""


class WorkPort(Protocol):
    """A Submitter, for one owner of submissions. guid: the owner's name, which is part of pointers to outputs."""

    @property
    def guid(self) -> str: ...

    @property
    def session_state(self) -> SessionState:
        """Whether the coordination service answers."""

    @property
    def session_timeout_s(self) -> float:
        """How long a silent Submitter counts as alive (s)."""

    def wait_ready(self, timeout_s: float) -> None:
        """Waits until the Submitter can work. Raises: NotConnected, CoordinationUnavailable; PermissionDenied, by a gateway."""

    def settings(self, *, timeout_s: float = 10.0) -> ClusterSettings:
        """Returns queues and limits, at most 5 s old."""

    def nodes(self, *, timeout_s: float = 10.0) -> list[NodeRecord]:
        """Returns the records of the nodes, at most 5 s old."""

    def submit(self, order: Order, *, timeout_s: float) -> Submitted:
        """Makes a submission by SUBMIT. The same token, or nonce, gives the same number again.

        Raises: UsageError for an order that no Starter would accept; PermissionDenied; WrongCluster; CoordinationUnavailable if it was not
            committed for certain; SubmitUnknown if that is not known (repeating it with the same token is safe).
        """

    def submit_many(self, orders: Sequence[Order], *, timeout_s: float) -> list[Submitted]:
        """Makes complete submissions without owner, each with a token; in this order, unless others submit meanwhile.

        Raises: as `submit`; submissions made before stay.
        """

    def read(self, number: int, *, timeout_s: float) -> Stored:
        """Reads record and tail. Raises: NotFound, CoordinationUnavailable."""

    def keep(
        self, stored: Stored, listener: KeptListener, *, is_owned: bool, wants_ownership: bool = False, is_fresh: bool = False
    ) -> Kept:
        """Looks after a submission, or follows it from its beginning. On the Submitter's thread.

        wants_ownership: takes it over once its owner is gone. is_fresh: it was made just now.
        """

    def close(self, *, timeout_s: float) -> None:
        """Closes everything; durable work goes on."""
