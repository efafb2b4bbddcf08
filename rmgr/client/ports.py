"""What passes between a submission and who makes or follows one: tasks as bytes in, outcomes as bytes out.

Listeners are called on the Submitter's thread and must neither block nor run code of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from rmgr.errors import RmgrError
from rmgr.model.tasks.block import Fragment, Outcome

if TYPE_CHECKING:
    from rmgr.client.submission.handle import SubmissionHandle


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
def _nobody(_handle: SubmissionHandle) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTasks:
    """Tasks that are known when their submission is made.

    complete: no more will follow. made: called with the handle before the listener hears of its tasks.
    """

    spec: TaskSpec
    payloads: list[bytes]
    complete: bool = False
    made: Callable[[SubmissionHandle], None] = _nobody
