"""The Submitter as the client library sees it: tasks as bytes in, outcomes as bytes out.

`engine.Engine` implements it in this process on ZooKeeper and the data store; a gateway client implements it over
gRPC. Nothing above it knows which one it talks to. Thread-safe; listeners are called on a thread of the Submitter and
must neither block nor run code of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from rmgr.coord.decisions.view import Progress
from rmgr.coord.protocol.ports import SessionState, Store
from rmgr.errors import RmgrError
from rmgr.model.cluster.node import NodeRecord
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.submission import Submission, Terms


class TaskSpec(msgspec.Struct, frozen=True, gc=False):
    """Settings that consecutive tasks of a submission share.

    function: sha256 of the function ("" for a command). keyed: their payloads are encoded `KeyedPayload`s.
    """

    function: str = ""
    resubmit: bool = True
    retries: int = 0
    keyed: bool = False


class Listener(Protocol):
    """Hears how the tasks of a submission end."""

    def on_outcomes(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        """These tasks are final now; each is delivered once. `fragment` says where they ran and in which attempt."""

    def on_progress(self) -> None:
        """Counts, tail or record have changed. Called after `on_outcomes`, and rarely without it."""

    def on_dead(self, error: RmgrError) -> None:
        """Nothing more will come: the submission is gone, was taken over, or the Submitter was closed."""


class SubmissionView(Protocol):
    """State of one submission, as the client knows it."""

    number: int
    progress: Progress  #: written by the Submitter's thread; reading single fields is safe anywhere

    @property
    def submission(self) -> Submission:
        """The record as last read."""

    @property
    def next_index(self) -> int:
        """Index that the next added task gets."""

    @property
    def first_unclaimed(self) -> int:
        """Tasks below it are durable, and their output keys are their own."""

    @property
    def reign(self) -> str:
        """Guid under which the tasks added now are submitted: part of the pointers to their outputs."""


class HandlePort(Protocol):
    """One submission that this Submitter looks after (or only follows)."""

    @property
    def view(self) -> SubmissionView:
        """Its state."""

    def add(self, spec: TaskSpec, payloads: list[bytes], *, solid: bool = False, row: str = "") -> int:
        """Adds tasks; they become durable with one of the next commits (`flush` waits for it). One caller at a time.

        Args:
            payloads: argument bytes, one a task. The list is the handle's from now on.
            solid: they are one block, run one after another in one slot (at most 256).
            row: the store row that already holds the arguments (then `payloads` are empty, one a task).
        Returns: the first index. Raises: StateConflict when the submission is complete, cancelled or not owned.
        """

    def wait_room(self, timeout_s: float | None) -> None:
        """Waits while too much is unsent, or until the submission was taken over from its dead owner.

        Raises: QueueFull when the queue's cap is the cause, StateConflict when the owner lives, and `timeout_s` ran out.
        """

    def flush(self, timeout_s: float | None) -> None:
        """Waits until all that was added is durable. Raises: SubmitUnknown, QueueFull, CoordinationUnavailable."""

    def wait_sent(self, index: int, timeout_s: float | None) -> bool:
        """Waits until task `index` is durable, or refused; False: not within the timeout. Raises what has ended the submission."""

    def take_refused(self, index: int | None = None) -> dict[int, RmgrError]:
        """Tasks that were refused because of their output keys (all, or this one), each returned once: index -> why."""

    def complete(self) -> None:
        """No task will follow. Idempotent; committed in the background (`flush` waits for it)."""

    def drop(self, indices: Sequence[int]) -> list[int]:
        """Cancels those of `indices` that are not sent yet; they end CANCELLED. Returns which."""


def _nobody(_handle: HandlePort) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTasks:
    """Tasks that are known when their submission is made.

    complete: no more will follow. made: called with the handle before the listener hears of its tasks.
    """

    spec: TaskSpec
    payloads: list[bytes]
    complete: bool = False
    made: Callable[[HandlePort], None] = _nobody


class ClusterView(Protocol):
    """The cluster and the caller, as a Submitter sees them."""

    @property
    def session_state(self) -> SessionState:
        """Whether the coordination service answers."""

    @property
    def user(self) -> str:
        """The user in whose name work is submitted, from the credentials; "" where there are none."""

    def settings(self, *, timeout_s: float = 10.0) -> ClusterSettings:
        """Queues and limits, at most 5 s old."""

    def nodes(self, *, timeout_s: float = 10.0) -> list[NodeRecord]:
        """Records of the nodes, at most 5 s old."""


class SubmitterPort(Protocol):
    """A Submitter."""

    store: Store

    @property
    def cluster(self) -> ClusterView:
        """Its cluster."""

    def open(self, draft: Submission, listener: Listener, *, timeout_s: float, first: FirstTasks | None = None) -> HandlePort:
        """SUBMIT: `draft` (its id is ignored) becomes a submission, owned by this Submitter.

        first: its first tasks, in the same commit if they fit it and the queue has room, else added at once (`flush` waits for
            them). Not added when the draft's token had been used before: then `next_index` is not how many they are.
        Raises: SubmitUnknown, CoordinationUnavailable, WrongCluster.
        """

    def attach(self, number: int, listener: Listener, *, own: bool, timeout_s: float) -> HandlePort:
        """Follows an existing submission from its beginning; with `own`, takes it over once its owner is gone.

        Raises: NotFound.
        """

    def cancel_tasks(self, number: int, indices: Sequence[int], *, reason: str, running: bool, timeout_s: float) -> list[int]:
        """Cancels tasks that wait; with `running` also orders those that run to be killed. Returns those that will not end otherwise."""

    def update(self, number: int, terms: Terms, *, timeout_s: float) -> str:
        """UPDATE in the name of this Submitter's user. Returns: why nothing was changed, "" when something was."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Runs user code (done callbacks) on a thread where it may block without harm."""

    def close(self, *, timeout_s: float = 5.0, sends: bool = False) -> None:
        """Lets go of everything; what is durable goes on without it. sends: first sends what waits, if that takes no longer."""
