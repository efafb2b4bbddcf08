"""What users read and order of a cluster: one struct a question, generic over its answer; who may ask it; and both as bytes (MessagePack).

`answers.py` answers on ZooKeeper and the data store, `remote.py` asks a gateway. Who asks is never part of a question.
A question may be asked again when its answer was lost, unless it says otherwise: what was ordered already is answered so.
All raise CoordinationUnavailable, and PermissionDenied for who may not ask; what else they raise stands with each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar, cast, get_args

import msgspec

from rmgr.coord.decisions.rights import Person, check_operator, denied
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.records import cut, is_deep, unpack
from rmgr.errors import NotFound, PermissionDenied, RequestTooLarge, Unavailable, UsageError
from rmgr.model.base.ids import MAX_NUMBER
from rmgr.model.base.states import State
from rmgr.model.cluster.node import Drain, EpochRecord, GangRecord, Meta, NodeRecord
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.block import MOST_TASKS, BlockKey, Fragment, StopRequest
from rmgr.model.tasks.submission import Amendment, Submission, Tail, Terms
from rmgr.model.views import ExplainView, JobView, NodeView, QueueView, StatusView, TaskView
from rmgr.model.wire.stream import msgpack_decoder

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)

#: What a field may hold, as the decoder checks it: names become parts of paths.
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Position = Annotated[int, msgspec.Meta(ge=0, le=MOST_TASKS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TASKS)]
Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,62}[a-zA-Z0-9])?\Z")]
Guid = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9]{8,64}\Z")]
User = Annotated[str, msgspec.Meta(max_length=255)]
#: Characters of what somebody says; what is kept of it is cut, or refused, where it is carried out.
MOST_WORDS = 200_000
Words = Annotated[str, msgspec.Meta(max_length=MOST_WORDS)]
Span = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
#: Pointers of one question.
MOST_POINTERS = 1000
Pem = Annotated[bytes, msgspec.Meta(max_length=16 * 1024)]
Numbers = Annotated[tuple[Number, ...], msgspec.Meta(max_length=100_000)]
#: Ranges of one question.
MOST_RANGES = 100_000
Ranges = Annotated[tuple[tuple[Position, Count], ...], msgspec.Meta(max_length=MOST_RANGES)]


class Question(msgspec.Struct, Generic[A], tag=True, tag_field="ask"):
    """A question whose answer is an `A`."""

    repeats: ClassVar[bool] = True


class Asks(Protocol):
    """Whoever answers: this process, or a gateway."""

    @property
    def hosts(self) -> str:
        """Whom it asks, for people."""

    @property
    def session_timeout_s(self) -> float:
        """How long whom it asks may be silent."""

    def ask(self, question: Question[A], *, timeout_s: float) -> A:
        """The answer. Raises what the question says; Throttled, by a gateway that has too many."""


# -- answers ------------------------------------------------------------------------------------------------------------------


class Versioned(msgspec.Struct, frozen=True):
    """The settings, and the version at which they may be replaced."""

    settings: ClusterSettings
    version: int


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """Who led last. leads: it does still, as far as ZooKeeper knows. watchdogs: how many could lead."""

    epoch: EpochRecord | None = None
    leads: bool = False
    watchdogs: int = 0

    @property
    def leader(self) -> EpochRecord | None:
        """Who leads and can be asked, None = nobody."""
        return self.epoch if self.leads and self.epoch is not None and self.epoch.endpoint else None


class RecordRead(msgspec.Struct, frozen=True):
    """The record of a submission, and how far it has grown."""

    record: Submission
    tail: Tail


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What a user who has a cap has of it: cores in use, open jobs; as the leader counted last."""

    cores: int = 0
    jobs: int = 0


class NodeClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of one submission that a node has claimed. endpoint: of its Starter."""

    node: str
    endpoint: str
    blocks: tuple[BlockKey, ...]


class TaskPage(msgspec.Struct, frozen=True):
    """Some tasks by position. is_last: no more follow, or as many as were asked for are here."""

    tasks: tuple[TaskView, ...]
    is_last: bool


class FragmentPage(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes in the order of their commits. total: tasks submitted so far. next: where to ask for more, unless `is_last`."""

    record: Submission
    total: int
    fragments: tuple[Fragment, ...]
    next: int
    is_last: bool


class FateRead(msgspec.Struct, frozen=True):
    """What became of a task: a final state, "open", "never" (it was not submitted), "gone" (collected), "denied"; the committed attempt."""

    fate: str
    attempt: int = 1


class Revoked(msgspec.Struct, frozen=True):
    """A revoked key. record: of its revocation. zxid: wrote that last; since_zxid: the key counts no more since."""

    key_id: str
    record: bytes
    zxid: int
    since_zxid: int


class GangRead(msgspec.Struct, frozen=True, kw_only=True):
    """A gang of which a job runs. generation: version of its record. clock_endpoint: of the node whose clock counts, "" = not known."""

    partition: str
    generation: int
    record: GangRecord
    clock_endpoint: str = ""


class RecordChange(msgspec.Struct, frozen=True, kw_only=True):
    """A submission before an order and after it. unchanged: why it did nothing, "" when it did something."""

    before: Submission
    after: Submission
    unchanged: str = ""


class TasksCancelled(msgspec.Struct, frozen=True, kw_only=True):
    """ended: ranges (first, count) that were cancelled or ordered to end. before: (first, count, state) of those that had ended."""

    ended: tuple[tuple[int, int], ...]
    before: tuple[tuple[int, int, State], ...]


class Updated(msgspec.Struct, frozen=True, kw_only=True):
    """As `RecordChange`. to_sign: nothing was changed yet: its user is to sign this, and to send it again."""

    before: Submission | None = None
    after: Submission | None = None
    unchanged: str = ""
    to_sign: Amendment | None = None


# -- what stands there --------------------------------------------------------------------------------------------------------


class ReadMeta(Question[Meta | None]):
    """Which cluster this is; None: there is none yet."""


class ReadSettings(Question[Versioned]):
    """The settings of the cluster. Raises StateConflict where there are none."""


class ReadNodes(Question[tuple[NodeRecord, ...]]):
    """What nodes have registered."""


class ReadDrain(Question[Drain | None]):
    """Why a node is drained; None when it is not."""

    node: Name


class WhoLeads(Question[Leadership]):
    """Who leads."""


class ReadRecord(Question[RecordRead]):
    """A submission that ZooKeeper holds. Raises NotFound."""

    number: Number


class ReadNonce(Question[int]):
    """The number to which the nonce of a submission's record has led when it was submitted, 0: to none. Raises NotFound."""

    number: Number


class WhichExist(Question[tuple[int, ...]]):
    """Those of these submissions that ZooKeeper holds."""

    numbers: Numbers


class CountWaiting(Question[int]):
    """Blocks that wait in a queue."""

    queue: Name


class ReadUse(Question[Use]):
    """What a user has of the caps."""

    user: User


class ReadClaims(Question[tuple[NodeClaims, ...]]):
    """Where blocks of a submission are claimed."""

    number: Number


class ReadTasks(Question[TaskPage]):
    """Tasks of a submission from a position on, at most `limit` (0 = as many as one answer bears). Raises NotFound, DataLost."""

    number: Number
    first: Position = 0
    limit: Count = 0


class ReadFragments(Question[FragmentPage]):
    """How tasks ended. first: 0, or the `next` of an answer. Raises NotFound, DataLost."""

    number: Number
    first: Number = 0


class CountFragments(Question[int]):
    """How many fragments of outcomes were committed, 0 for a submission that is not there."""

    number: Number


class ReadGangs(Question[tuple[GangRead, ...]]):
    """Who shares nodes in time. Raises InvalidRecord."""


class ReadFates(Question[tuple[FateRead, ...]]):
    """What became of the tasks behind pointers, in their order. Raises DataLost, StoreUnavailable."""

    pointers: Annotated[tuple[Pointer, ...], msgspec.Meta(max_length=MOST_POINTERS)]


class LocateValue(Question[str]):
    """The row with the value of an output. user_key: under which it was found, for errors. Raises NotFound, DataLost."""

    user_key: Words
    pointer: Pointer


# -- views, made of znodes where no leader answers -----------------------------------------------------------------------------


class DeriveJobs(Question[tuple[JobView, ...]]):
    """Submissions, oldest first: those of `ids`, else the live ones (with `ended` all), of `user` or of everyone."""

    ids: Numbers = ()
    ended: bool = False
    user: User = ""


class DeriveNodes(Question[tuple[NodeView, ...]]):
    """All nodes, by name."""


class DeriveQueues(Question[tuple[QueueView, ...]]):
    """All queues and queue classes, by name."""


class DeriveStatus(Question[StatusView]):
    """Health and counts. zookeeper, store: what who asks knows of these."""

    zookeeper: dict[str, Any]
    store: dict[str, Any]


class DeriveExplain(Question[ExplainView]):
    """Why a submission or a task is in its state. store_problem: as who asks knows it. Raises NotFound."""

    number: Number
    position: Position | None = None
    store_problem: Words = ""


# -- orders -------------------------------------------------------------------------------------------------------------------


class CancelSubmission(Question[RecordChange]):
    """From now on nothing of it starts; what waits ends CANCELLED, what runs is killed. Raises NotFound."""

    number: Number
    detail: Words = ""


class HoldSubmission(Question[RecordChange]):
    """Nothing more of it starts until it is released; what runs goes on. Raises NotFound."""

    number: Number
    detail: Words = ""


class ReleaseSubmission(Question[RecordChange]):
    """After a hold. Raises NotFound."""

    number: Number


class CancelTasks(Question[TasksCancelled]):
    """Tasks that wait end CANCELLED, those that run are ordered to. ranges: (first, count). Raises NotFound, DeadlineExceeded.

    waits_only: those that run go on.
    """

    number: Number
    ranges: Ranges
    detail: Words = ""
    waits_only: bool = False


class KillRunning(Question[int]):
    """Orders what runs of a cancelled submission to end, as a leader would; how many nodes were told. Raises NotFound, StateConflict."""

    number: Number


class UpdateSubmission(Question[Updated]):
    """Other terms. amendment: what was to be signed, signed. Raises NotFound, UsageError, Infeasible."""

    number: Number
    terms: Terms
    amendment: Amendment | None = None


class MoveTask(Question[None]):
    """A placed job that runs is asked to save its state, and to go on elsewhere or (`stays`) where it is. guid: drawn by who asks, anew."""

    number: Number
    guid: Guid
    stays: bool = False
    index: Position = 0
    attempt: Count = 0
    to: Name | None = None
    grace_us: Span = 0


class ReadMoved(Question[StopRequest]):
    """What came of a `MoveTask`: `answered` once it is known. Raises NotFound."""

    number: Number
    guid: Guid


class VacateNode(Question[None]):
    """All placed jobs with a part on a drained node are asked to go on elsewhere. guid: drawn by who asks, anew."""

    node: Name
    guid: Guid


class ReadVacated(Question[StopRequest]):
    """What came of a `VacateNode`. Raises NotFound."""

    node: Name
    guid: Guid


class DrainNode(Question[None]):
    """A node takes nothing new; drained again, the reason is replaced. Raises StateConflict."""

    node: Name
    reason: Words = ""


class ResumeNode(Question[bool]):
    """A drained node takes work again; False when it was not drained. Raises StateConflict."""

    node: Name


class ForgetNode(Question[None]):
    """Nothing shows a stopped node any more; for the admin, at ZooKeeper itself. Raises NotFound, StateConflict."""

    node: Name


class ApplySettings(Question[None]):
    """Replaces settings that were read at `version`; a lost answer is not asked for again. Raises StateConflict, InvalidRecord."""

    repeats: ClassVar[bool] = False
    settings: ClusterSettings
    version: Number


class ReadCertificate(Question[bytes | None]):
    """The certificate of a signing key, as it was published; None: nobody has it."""

    key_id: Guid


class ReadRevoked(Question[tuple[Revoked, ...]]):
    """All keys that were revoked."""


class PublishCertificate(Question[None]):
    """The certificate of one's own signing key is there for all who verify."""

    pem: Pem


# -- who may ask ---------------------------------------------------------------------------------------------------------------


class Right(Enum):
    """Whom a question is for."""

    ANYBODY = auto()  #: whom the cluster lets in; the answer leaves out what is not his to see
    READER = auto()  #: the owner of the submissions that it names, and operators
    OWNER = auto()  #: the same, for orders: users of an open cluster are kept from others' work, too, as a courtesy
    HIMSELF = auto()  #: the user that it names, and operators
    OPERATOR = auto()


#: Every question, and whom it is for.
RIGHTS: dict[type[Question[Any]], Right] = {
    **dict.fromkeys((ReadMeta, ReadSettings, ReadNodes, ReadDrain, WhoLeads, CountWaiting, ReadClaims), Right.ANYBODY),
    **dict.fromkeys((ReadFates, ReadCertificate, ReadRevoked), Right.ANYBODY),
    **dict.fromkeys((ReadGangs, DeriveJobs, DeriveNodes, DeriveQueues, DeriveStatus, DeriveExplain), Right.ANYBODY),
    **dict.fromkeys((ReadRecord, ReadNonce, WhichExist, ReadTasks, ReadFragments), Right.READER),
    **dict.fromkeys((CountFragments, LocateValue, ReadMoved), Right.READER),
    **dict.fromkeys((CancelSubmission, HoldSubmission, ReleaseSubmission, CancelTasks, KillRunning), Right.OWNER),
    **dict.fromkeys((UpdateSubmission, MoveTask), Right.OWNER),
    ReadUse: Right.HIMSELF,
    **dict.fromkeys((VacateNode, ReadVacated, DrainNode, ResumeNode, ForgetNode, ApplySettings), Right.OPERATOR),
    PublishCertificate: Right.ANYBODY,  # his own alone: `orders.publish` compares it with the key of his connection
}

#: Questions that change something, and what an audit calls them.
ORDERS: dict[type[Question[Any]], str] = {
    CancelSubmission: "CANCEL",
    HoldSubmission: "HOLD",
    ReleaseSubmission: "RELEASE",
    CancelTasks: "TAKE_OUT",
    KillRunning: "ORDER",
    UpdateSubmission: "UPDATE",
    MoveTask: "ASK",
    VacateNode: "VACATE",
    DrainNode: "DRAIN",
    ResumeNode: "RESUME",
    ForgetNode: "FORGET",
    ApplySettings: "SETTINGS",
    PublishCertificate: "IDENTIFY",
}

#: What concerns all, in words.
_OF_OPERATORS: dict[type[Question[Any]], str] = {
    VacateNode: "emptying a node",
    ReadVacated: "emptying a node",
    DrainNode: "draining a node",
    ResumeNode: "resuming a node",
    ForgetNode: "forgetting a node",
    ApplySettings: "changing the settings of the cluster",
}


def submissions_of(question: Question[Any]) -> tuple[int, ...]:
    """The submissions that a question names."""
    if isinstance(question, WhichExist):
        return tuple(dict.fromkeys(question.numbers))
    if isinstance(question, LocateValue):
        return (question.pointer.sub,)
    number = getattr(question, "number", None)
    return () if number is None else (number,)


def target_of(question: Question[Any]) -> str:
    """What a question is about, for an audit."""
    numbers = submissions_of(question)
    return str(numbers[0]) if numbers else str(getattr(question, "node", "") or getattr(question, "user", ""))


def check_asker(
    who: Person,
    question: Question[Any],
    owner_of: Callable[[int], str | None],
    operators: Callable[[], Iterable[str]] = tuple,
    *,
    reads_all: bool = False,
) -> Collection[str]:
    """Raises PermissionDenied unless `who` may ask this; NotFound for a submission that is not there.

    Args:
        owner_of: whose a submission is, None: there is none. operators: other names that count as operators, asked when it matters.
        reads_all: whoever reaches ZooKeeper himself is kept from no reading.
    Returns: whose work it concerns beside his own, as far as that was asked.
    """
    right = RIGHTS[type(question)]
    if right is Right.OPERATOR:
        if not who.is_free and who.name not in operators():
            check_operator(who, _OF_OPERATORS[type(question)])
        return ()
    reads_all = reads_all or who.is_free
    if right is Right.HIMSELF:
        named = getattr(question, "user", "")
        if not reads_all and named != who.name and who.name not in operators():
            raise PermissionDenied(f"only operators see what {named or 'others'} may have", hint="ask an operator")
        return ()
    if right is Right.ANYBODY or (right is Right.READER and reads_all):
        return ()
    others = set()
    for number in submissions_of(question):
        owner = owner_of(number)
        if owner is None:
            if isinstance(question, WhichExist | LocateValue):
                continue  # what is not there is nobody's, and may be looked for
            raise NotFound(f"there is no submission {number}", hint="rmgr jobs -a lists those in memory, rmgr history the older ones")
        if who.owns(owner) or (who.is_open and not who.name):
            continue
        is_operator = who.name == "root" if who.is_open else who.is_operator
        if not is_operator and who.name not in operators():
            raise denied(number, owner)
        others.add(owner)
    return others


# -- as bytes ------------------------------------------------------------------------------------------------------------------

#: Bytes of a question, values in it; bytes and values of an answer.
MAX_QUESTION_BYTES, _QUESTION_VALUES = 1024 * 1024, 300_000
MAX_ANSWER_BYTES, _ANSWER_VALUES = 256 * 1024 * 1024, 30_000_000

_encoder = msgspec.msgpack.Encoder()
_plain = msgspec.msgpack.Decoder()


def encode_question(question: Question[Any]) -> bytes:
    """Raises RequestTooLarge."""
    data = _encoder.encode(question)
    if len(data) > MAX_QUESTION_BYTES:
        told = f"{type(question).__name__}: {len(data)} bytes are asked at once, at most {MAX_QUESTION_BYTES} may be"
        raise RequestTooLarge(told, hint="name fewer at once")
    return data


def decode_question(data: bytes) -> Question[Any]:
    """Whatever somebody has sent. Raises UsageError, RequestTooLarge; nothing else."""
    if len(data) > MAX_QUESTION_BYTES:
        told = f"a question has {len(data)} bytes, at most {MAX_QUESTION_BYTES} may be asked at once"
        raise RequestTooLarge(told, hint="name fewer at once")
    try:
        if is_deep(unpack(_plain.decode, data, _QUESTION_VALUES)):
            raise UsageError("a question is nested too deep", hint="rmgr version, here and where the gateway runs")
        return cast(Question[Any], unpack(msgpack_decoder(_any_question()).decode, data, _QUESTION_VALUES))
    except msgspec.DecodeError as error:
        raise UsageError(f"a question cannot be read: {cut(error)}", hint="rmgr version, here and where the gateway runs") from None


@cache
def _any_question() -> Any:
    return reduce(or_, RIGHTS)


def encode_answer(answer: object) -> bytes:
    """Raises RequestTooLarge."""
    data = _encoder.encode(answer)
    if len(data) > MAX_ANSWER_BYTES:
        raise RequestTooLarge(f"the answer has {len(data)} bytes, at most {MAX_ANSWER_BYTES} are sent", hint="ask for less at once")
    return data


def decode_answer(question: Question[A], data: bytes) -> A:
    """Raises Unavailable: it is not what answers that question."""
    try:
        return cast(A, unpack(msgpack_decoder(answer_type(type(question))).decode, data, _ANSWER_VALUES))
    except msgspec.DecodeError as error:
        told = f"the answer to {type(question).__name__} cannot be read: {cut(error)}"
        raise Unavailable(told, hint="rmgr version, here and where the gateway runs") from None


@cache
def answer_type(kind: type[Question[Any]]) -> Any:
    """What answers questions of a kind: the parameter of its base."""
    return get_args(kind.__orig_bases__[0])[0]  # type: ignore[attr-defined]
