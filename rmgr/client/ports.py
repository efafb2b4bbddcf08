"""The interface between a submission and its maker or follower: tasks go in, and outcomes come out, as bytes.

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
        """Takes tasks that are final now, each once. `fragment` tells where they ran and in which attempt."""

    def on_progress(self) -> None:
        """Is called when counts, tail or record have changed: after `on_outcomes`, and rarely without it."""

    def on_dead(self, error: RmgrError) -> None:
        """Is called when nothing more will come: the submission is gone or was taken over, or the Submitter was closed."""
def _nobody(_handle: SubmissionHandle) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTasks:
    """Tasks that are known when their submission is made.

    complete: no more tasks follow. made: called with the handle before the listener hears of its tasks.
    """

    spec: TaskSpec
    payloads: list[bytes]
    complete: bool = False
    made: Callable[[SubmissionHandle], None] = _nobody
