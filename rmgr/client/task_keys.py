"""Keys of keyed tasks, before these are submitted: keys that cannot be are refused, and output keys that are known to be taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rmgr.coord.protocol.keys import check_new_key, check_user_key
from rmgr.errors import KeyExists, UsageError
from rmgr.model.tasks.block import MAX_KEYS

if TYPE_CHECKING:
    from rmgr.client.ports import HandlePort
    from rmgr.client.values.seen import SeenKeys

#: Output keys remembered before those are forgotten whose tasks have claimed them.
_MANY_UNCLAIMED = 10_000


class KeyedValues(Protocol):
    """Looks keys up in the data store. seen: keys that this process knows to have been taken."""

    seen: SeenKeys

    def check_free(self, key: str, *, timeout: float) -> object:
        """Raises KeyExists."""
        ...

    def check_mine(self, key: str, *, timeout: float) -> object:
        """Raises PermissionDenied where the key is somebody else's."""
        ...

    def check_input(self, key: str, *, trust: Sequence[str], timeout: float) -> None:
        """Raises PermissionDenied where a task could not load it."""
        ...


class TaskKeys:
    """Refuses keys of tasks of one queue. One caller at a time."""

    def __init__(self, values: KeyedValues) -> None:
        self._values = values
        self._unclaimed: dict[str, int] = {}  #: output keys of tasks that may not have claimed them yet

    def add(self, outputs: Sequence[str], index: int) -> None:
        """Task `index` writes these keys."""
        self._unclaimed.update(dict.fromkeys(outputs, index))

    def check_free(self, outputs: Sequence[str], handle: HandlePort, *, timeout_s: float) -> None:
        """Refuses output keys that are known here to be taken. Reads nothing but those that were seen before.

        Raises: KeyExists, StoreUnavailable.
        """
        claimed = handle.view.first_unclaimed
        if len(self._unclaimed) > _MANY_UNCLAIMED:
            self._unclaimed = {key: index for key, index in self._unclaimed.items() if index >= claimed}
        for key in outputs:
            if self._unclaimed.get(key, -1) >= claimed:
                task = f"{handle.view.number}_{self._unclaimed[key]}"
                raise KeyExists(f"the output key {key!r} exists already: task {task} writes it", hint="overwrite=True replaces it")
            if key in self._values.seen:
                self._values.check_free(key, timeout=timeout_s)

    def look(self, inputs: Sequence[str], outputs: Sequence[str], *, overwrite: bool, trust: Sequence[str], timeout_s: float) -> None:
        """Refuses what the store refuses now. Raises: KeyExists, PermissionDenied, StoreUnavailable. Cost: a read for each key."""
        check_output = self._values.check_mine if overwrite else self._values.check_free
        for key in outputs:
            check_output(key, timeout=timeout_s)
        for key in inputs:
            self._values.check_input(key, trust=trust, timeout=timeout_s)


def check_names(inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Raises UsageError for keys that cannot be, and for an output key that stands twice."""
    written, _ = set(map(check_new_key, outputs)), [check_user_key(key) for key in inputs]
    if len(written) != len(outputs):
        raise UsageError(f"an output key stands twice in {list(outputs)}")
    if len(inputs) + len(outputs) > MAX_KEYS:
        told = f"a task has {len(inputs):,} input keys and {len(outputs):,} output keys; {MAX_KEYS:,} together are the limit"
        raise UsageError(told, hint="several values under one key, or more tasks")
