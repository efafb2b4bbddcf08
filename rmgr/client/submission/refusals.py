"""Keeps tasks that were refused because of their output keys until somebody asks for them. Used under the handle's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmgr.errors import KeyExists, RmgrError
from rmgr.model.base.states import Reason
from rmgr.model.tasks.outcome import Outcome
from rmgr.procedures.claims import HOW_TO_REPLACE

#: Refused tasks that are kept, the latest.
_KEPT = 20_000


class Refusals:
    """Refused tasks of one submission."""

    def __init__(self) -> None:
        self._refused: dict[int, RmgrError] = {}
        self._early: set[int] = set()  #: refused here, while the node that has them does not say so yet

    def add(self, refused: Mapping[int, RmgrError], *, is_early: bool = False) -> None:
        """These tasks were refused: index -> why. is_early: an outcome that says the same will come."""
        if is_early:
            refused = {index: why for index, why in refused.items() if index not in self._early}
            self._early.update(refused)
        self._refused.update(refused)
        while len(self._refused) > _KEPT:  # nobody asks
            del self._refused[next(iter(self._refused))]

    def read(self, outcomes: Sequence[Outcome]) -> None:
        """Takes in what a node has refused. Cost: O(outcomes)."""
        for outcome in outcomes:
            if outcome.reason is not Reason.OUTPUT_EXISTS:
                continue
            if outcome.index in self._early:
                self._early.discard(outcome.index)
            else:
                self.add({outcome.index: KeyExists(outcome.error, hint=HOW_TO_REPLACE)})

    def take(self, index: int | None = None) -> dict[int, RmgrError]:
        """All, or this one, each returned once: index -> why."""
        if index is not None:
            return {index: self._refused.pop(index)} if index in self._refused else {}
        taken, self._refused = self._refused, {}
        return taken
