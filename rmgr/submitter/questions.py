"""What users read and order of a cluster: one struct per question, generic over its answer; who may ask; both as bytes (MessagePack).

`answers.py` answers on ZooKeeper and the data store, `remote.py` asks a gateway. The asker is never part of a question.
A question may be repeated after a lost answer, unless it says otherwise: an order already carried out is answered as such.
Each may raise CoordinationUnavailable, and PermissionDenied if the asker lacks the right; each names its other errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar, cast, get_args

import msgspec

from rmgr.coord.decisions.changing import Changed
from rmgr.coord.decisions.rights import Person, check_operator, denied, no_submission
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.records import cut, is_deep, unpack
from rmgr.errors import PermissionDenied, RequestTooLarge, Unavailable, UsageError
from rmgr.model.base import MAX_NUMBER
from rmgr.model.block import MOST_TASKS, BlockKey, Fragment, StopRequest
from rmgr.model.node import Drain, EpochRecord, GangRecord, Meta, NodeRecord
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import State
from rmgr.model.stream import msgpack_decoder
from rmgr.model.submission import Amendment, Submission, Tail, Terms
from rmgr.model.views import ExplainView, JobView, NodeView, QueueView, StatusView, TaskView

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)

#: Fields as the decoder checks them: names become parts of paths.
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Position = Annotated[int, msgspec.Meta(ge=0, le=MOST_TASKS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TASKS)]
Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,62}[a-zA-Z0-9])?\Z")]
Guid = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9]{8,64}\Z")]
User = Annotated[str, msgspec.Meta(max_length=255)]
#: Most characters of a text; the code that carries out the order cuts or refuses more than is kept.
MOST_WORDS = 200_000
Words = Annotated[str, msgspec.Meta(max_length=MOST_WORDS)]
Span = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
#: Pointers in one question.
MOST_POINTERS = 1000
Pem = Annotated[bytes, msgspec.Meta(max_length=16 * 1024)]
Numbers = Annotated[tuple[Number, ...], msgspec.Meta(max_length=100_000)]
#: Ranges in one question.
MOST_RANGES = 100_000
Ranges = Annotated[tuple[tuple[Position, Count], ...], msgspec.Meta(max_length=MOST_RANGES)]


class Question(msgspec.Struct, Generic[A], tag=True, tag_field="ask"):
    """A question whose answer is an `A`."""

    repeats: ClassVar[bool] = True


class Asks(Protocol):
    """Answers questions: on ZooKeeper, or through a gateway."""

    @property
    def hosts(self) -> str:
        """The address that is asked, as text for people."""

    @property
    def session_timeout_s(self) -> float:
        """How long the service that it asks may be silent (s)."""

    def ask(self, question: Question[A], *, timeout_s: float) -> A:
        """Returns the answer. Raises the question's errors; Throttled, by a gateway with too many questions."""


# -- answers ------------------------------------------------------------------------------------------------------------------


class Versioned(msgspec.Struct, frozen=True):
    """The settings, and the version at which they may be replaced."""

    settings: ClusterSettings
    version: int


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """The latest leader. leads: it still does, as far as ZooKeeper knows. watchdogs: number of candidates."""

    epoch: EpochRecord | None = None
    leads: bool = False
    watchdogs: int = 0

    @property
    def leader(self) -> EpochRecord | None:
        """The leader that can be asked, None = there is none."""
        return self.epoch if self.leads and self.epoch is not None and self.epoch.endpoint else None


class RecordRead(msgspec.Struct, frozen=True):
    """The record of a submission, and its tail."""

    record: Submission
    tail: Tail


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What a user with a cap uses: cores in use, open jobs; as the leader counted last."""

    cores: int = 0
    jobs: int = 0


class NodeClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of one submission that a node has claimed. endpoint: of its Starter."""

    node: str
    endpoint: str
    blocks: tuple[BlockKey, ...]


class TaskPage(msgspec.Struct, frozen=True):
    """Some tasks by position. is_last: no more tasks follow, or the page has as many as were asked for."""

    tasks: tuple[TaskView, ...]
    is_last: bool


class FragmentPage(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes in the order of their commits. total: tasks submitted so far. next: where to continue, unless `is_last`."""

    record: Submission
    total: int
    fragments: tuple[Fragment, ...]
    next: int
    is_last: bool


class FateRead(msgspec.Struct, frozen=True):
    """Fate of a task: a final state, "open", "never" (not submitted), "gone" (collected), or "denied"; and the committed attempt."""

    fate: str
    attempt: int = 1


class Revoked(msgspec.Struct, frozen=True):
    """A revoked key. record: of the revocation. zxid: of its last write; since_zxid: from then on the key does not count."""

    key_id: str
    record: bytes
    zxid: int
    since_zxid: int


class GangRead(msgspec.Struct, frozen=True, kw_only=True):
    """A gang with a running job. generation: version of its record. clock_endpoint: of the node with the gang's clock, "" = unknown."""

    partition: str
    generation: int
    record: GangRecord
    clock_endpoint: str = ""


class TasksCancelled(msgspec.Struct, frozen=True, kw_only=True):
    """ended: ranges (first, count) cancelled or ordered to end. before: (first, count, state) of tasks that had ended already."""

    ended: tuple[tuple[int, int], ...]
    before: tuple[tuple[int, int, State], ...]


# -- reading what is recorded --------------------------------------------------------------------------------------------------


class ReadMeta(Question[Meta | None]):
    """The cluster's record; None if there is no cluster yet."""


class ReadSettings(Question[Versioned]):
    """The settings of the cluster. Raises StateConflict if there are none."""


class ReadNodes(Question[tuple[NodeRecord, ...]]):
    """The records of all nodes."""


class ReadDrain(Question[Drain | None]):
    """Why a node is drained; None if it is not."""

    node: Name


class WhoLeads(Question[Leadership]):
    """The leader, and the candidates."""


class ReadRecord(Question[RecordRead]):
    """A submission that ZooKeeper holds. Raises NotFound."""

    number: Number


class ReadNonce(Question[int]):
    """The number that the nonce in a submission's record was assigned when it was submitted, 0 if none. Raises NotFound."""

    number: Number


class WhichExist(Question[tuple[int, ...]]):
    """Which of these submissions ZooKeeper holds."""

    numbers: Numbers


class CountWaiting(Question[int]):
    """Number of blocks that wait in a queue."""

    queue: Name


class ReadUse(Question[Use]):
    """How much of the caps a user uses."""

    user: User


class ReadClaims(Question[tuple[NodeClaims, ...]]):
    """Nodes that have claimed blocks of a submission."""

    number: Number


class ReadTasks(Question[TaskPage]):
    """Tasks of a submission from a position on, at most `limit` (0 = as many as fit one answer). Raises NotFound, DataLost."""

    number: Number
    first: Position = 0
    limit: Count = 0


class ReadFragments(Question[FragmentPage]):
    """Outcomes of tasks. first: 0, or the `next` of an answer. Raises NotFound, DataLost."""

    number: Number
    first: Number = 0


class CountFragments(Question[int]):
    """Number of committed fragments, 0 for a submission that does not exist."""

    number: Number


class ReadGangs(Question[tuple[GangRead, ...]]):
    """Gangs of jobs that share nodes in time. Raises InvalidRecord."""


class ReadFates(Question[tuple[FateRead, ...]]):
    """What became of the tasks behind pointers, in the order of `pointers`. Raises DataLost, StoreUnavailable."""

    pointers: Annotated[tuple[Pointer, ...], msgspec.Meta(max_length=MOST_POINTERS)]


class LocateValue(Question[str]):
    """The row that holds the value of an output. user_key: the user's key, for errors. Raises NotFound, DataLost."""

    user_key: Words
    pointer: Pointer


# -- views, derived from znodes where no leader answers ------------------------------------------------------------------------


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
    """Health and counts. zookeeper, store: the asker's own knowledge of these."""

    zookeeper: dict[str, Any]
    store: dict[str, Any]


class DeriveExplain(Question[ExplainView]):
    """Why a submission or a task is in its state. store_problem: as the asker knows it. Raises NotFound."""

    number: Number
    position: Position | None = None
    store_problem: Words = ""


# -- orders -------------------------------------------------------------------------------------------------------------------


class CancelSubmission(Question[Changed]):
    """Cancels a submission: no more tasks start, waiting ones end CANCELLED, running ones are killed. Raises NotFound."""

    number: Number
    detail: Words = ""


class HoldSubmission(Question[Changed]):
    """Holds a submission: no more tasks start until it is released, running ones go on. Raises NotFound."""

    number: Number
    detail: Words = ""


class ReleaseSubmission(Question[Changed]):
    """Releases a submission after a hold. Raises NotFound."""

    number: Number


class CancelTasks(Question[TasksCancelled]):
    """Ends waiting tasks CANCELLED, and orders running ones to end. ranges: (first, count). Raises NotFound, DeadlineExceeded.

    waits_only: running tasks go on.
    """

    number: Number
    ranges: Ranges
    detail: Words = ""
    waits_only: bool = False


class KillRunning(Question[int]):
    """Orders running tasks of a cancelled submission to end, as a leader would; returns the number of nodes told.

    Raises NotFound, StateConflict.
    """

    number: Number


class UpdateSubmission(Question[Changed]):
    """Changes terms. amendment: the signed `to_sign` of an earlier answer. Raises NotFound, UsageError, Infeasible."""

    number: Number
    terms: Terms
    amendment: Amendment | None = None


class MoveTask(Question[None]):
    """Asks a running placed job to save its state, and to go on elsewhere or (`stays`) on its nodes. guid: a new one from the asker."""

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
    """Asks all placed jobs with a part on a drained node to go on elsewhere. guid: a new one from the asker."""

    node: Name
    guid: Guid


class ReadVacated(Question[StopRequest]):
    """What came of a `VacateNode`. Raises NotFound."""

    node: Name
    guid: Guid


class DrainNode(Question[None]):
    """Drains a node, so that it takes no new work; draining it again with another reason replaces that. Raises StateConflict."""

    node: Name
    reason: Words = ""


class ResumeNode(Question[bool]):
    """Lets a drained node take work again; False if it was not drained. Raises StateConflict."""

    node: Name


class ForgetNode(Question[None]):
    """Removes a stopped node's record; only for the admin, on ZooKeeper itself. Raises NotFound, StateConflict."""

    node: Name


class ApplySettings(Question[None]):
    """Replaces settings that were read at `version`; not repeated after a lost answer. Raises StateConflict, InvalidRecord."""

    repeats: ClassVar[bool] = False
    settings: ClusterSettings
    version: Number


class ReadCertificate(Question[bytes | None]):
    """The published certificate of a signing key; None if none was published."""

    key_id: Guid


class ReadRevoked(Question[tuple[Revoked, ...]]):
    """All revoked keys."""


class PublishCertificate(Question[None]):
    """Publishes the certificate of the asker's own signing key for all verifiers."""

    pem: Pem


# -- who may ask ---------------------------------------------------------------------------------------------------------------


class Right(Enum):
    """Who may ask a question."""

    ANYBODY = auto()  #: everyone whom the cluster admits; the answer leaves out what the asker may not see
    READER = auto()  #: the owner of the submissions that it names, and operators
    OWNER = auto()  #: as READER, for orders: as a courtesy, also protects work of others in an open cluster
    HIMSELF = auto()  #: the user that it names, and operators
    OPERATOR = auto()


#: Every question, and who may ask it.
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
    PublishCertificate: Right.ANYBODY,  # only one's own: `orders.publish` compares it with the key of the connection
}

#: Questions that change something, and their names in an audit.
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

#: Names of the questions for operators, for error messages.
_OF_OPERATORS: dict[type[Question[Any]], str] = {
    VacateNode: "emptying a node",
    ReadVacated: "emptying a node",
    DrainNode: "draining a node",
    ResumeNode: "resuming a node",
    ForgetNode: "forgetting a node",
    ApplySettings: "changing the settings of the cluster",
}


def submissions_of(question: Question[Any]) -> tuple[int, ...]:
    """Returns the submissions that a question names."""
    if isinstance(question, WhichExist):
        return tuple(dict.fromkeys(question.numbers))
    if isinstance(question, LocateValue):
        return (question.pointer.sub,)
    number = getattr(question, "number", None)
    return () if number is None else (number,)


def target_of(question: Question[Any]) -> str:
    """Returns what a question is about, for an audit."""
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
    """Raises PermissionDenied unless `who` may ask this; NotFound for a submission that does not exist.

    Args:
        owner_of: returns a submission's owner, None if it does not exist. operators: returns other names that count as operators.
        reads_all: the asker reaches ZooKeeper directly, so no reading is refused.
    Returns: the other users whose work the question concerns, as far as that was checked.
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
                continue  # a submission that does not exist may be looked for
            raise no_submission(number)
        if who.owns(owner) or (who.is_open and not who.name):
            continue
        is_operator = who.name == "root" if who.is_open else who.is_operator
        if not is_operator and who.name not in operators():
            raise denied(number, owner)
        others.add(owner)
    return others


# -- as bytes ------------------------------------------------------------------------------------------------------------------

#: Most bytes of a question, and values in it; the same of an answer.
MAX_QUESTION_BYTES, _QUESTION_VALUES = 1024 * 1024, 300_000
MAX_ANSWER_BYTES, _ANSWER_VALUES = 256 * 1024 * 1024, 30_000_000

_encoder = msgspec.msgpack.Encoder()
_plain = msgspec.msgpack.Decoder()


def encode_question(question: Question[Any]) -> bytes:
    """Returns a question as bytes. Raises RequestTooLarge."""
    data = _encoder.encode(question)
    if len(data) > MAX_QUESTION_BYTES:
        message = f"{type(question).__name__}: {len(data)} bytes are asked at once, at most {MAX_QUESTION_BYTES} may be"
        raise RequestTooLarge(message, hint="name fewer at once")
    return data


def decode_question(data: bytes) -> Question[Any]:
    """Reads a question from untrusted bytes. Raises UsageError, RequestTooLarge; nothing else."""
    if len(data) > MAX_QUESTION_BYTES:
        message = f"a question has {len(data)} bytes, at most {MAX_QUESTION_BYTES} may be asked at once"
        raise RequestTooLarge(message, hint="name fewer at once")
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
    """Returns an answer as bytes. Raises RequestTooLarge."""
    data = _encoder.encode(answer)
    if len(data) > MAX_ANSWER_BYTES:
        raise RequestTooLarge(f"the answer has {len(data)} bytes, at most {MAX_ANSWER_BYTES} are sent", hint="ask for less at once")
    return data


def decode_answer(question: Question[A], data: bytes) -> A:
    """Reads the answer to `question`. Raises Unavailable if the bytes are not an answer to it."""
    try:
        return cast(A, unpack(msgpack_decoder(answer_type(type(question))).decode, data, _ANSWER_VALUES))
    except msgspec.DecodeError as error:
        message = f"the answer to {type(question).__name__} cannot be read: {cut(error)}"
        raise Unavailable(message, hint="rmgr version, here and where the gateway runs") from None


@cache
def answer_type(kind: type[Question[Any]]) -> Any:
    """Returns the type of the answers to questions of a kind: the parameter of its base."""
    return get_args(kind.__orig_bases__[0])[0]  # type: ignore[attr-defined]
