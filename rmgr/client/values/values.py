"""Values by name, as users have them: one at a time (`stored.py`), many at once, and the output keys of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rmgr.client.values.stored import StoredValues
from rmgr.coord.decisions import ownership
from rmgr.coord.protocol.keys import Pointer
from rmgr.errors import RmgrError

#: How a caller follows a long call: a display, or a function that is told (how many so far, of how many or 0).
Progress = bool | Callable[[int, int], None]


class Values(StoredValues):
    """`connect().store`: put, get, delete, keys. Thread-safe.

    Bytes are stored as they are, any other object pickled. Values have at most 5 GiB and are immutable: putting a key again
    replaces the whole value in one step. deeds: None in an open cluster, where values are everybody's.
    """

    def put_many(
        self,
        values: Mapping[str, Any] | Iterable[tuple[str, Any]],
        *,
        overwrite: bool = True,
        progress: Progress = False,
        timeout: float = 30.0,
    ) -> int:
        """Stores many values, 1,000 or 4 MiB at a time, each as `put` would; returns how many. An iterable is not held whole.

        Args:
            progress: True shows it on stderr; a function is told (how many so far, of how many or 0) after each step.
            timeout: of each step.
        Raises: as `put`; steps before stay. Of the step with a key that cannot be had nothing is stored where all are bytes, or none is.
        """
        from rmgr.client.values.many_values import put_many

        return put_many(self, values, overwrite=overwrite, progress=progress, timeout=timeout)

    def get_many(
        self, keys: Iterable[str], *, trust: str | Iterable[str] = (), progress: Progress = False, timeout: float = 30.0
    ) -> dict[str, Any]:
        """The values of those `keys` that have one now, in their order. Holds all of them.

        Args: trust: as in `get`. progress, timeout: as in `put_many`, of 256 keys.
        Raises: PermissionDenied when one is somebody else's, or somebody else's pickle; DataLost, PickleFailed, StoreUnavailable.
        """
        from rmgr.client.values.many_values import get_many

        return get_many(self, keys, trust=ownership.trusted(trust), progress=progress, timeout=timeout)

    def delete_many(self, keys: Iterable[str], *, progress: Progress = False, timeout: float = 30.0) -> int:
        """Makes many keys absent; returns how many there were. progress, timeout: as in `put_many`, of 1,000 keys.

        Raises: PermissionDenied when one is somebody else's (none of its step is deleted then); StoreUnavailable.
        """
        from rmgr.client.values.many_values import delete_many

        return delete_many(self, keys, progress=progress, timeout=timeout)

    def claim_outputs(self, outputs: Iterable[tuple[str, Pointer]], *, overwrite: bool, timeout: float = 30.0) -> None:
        """Writes pointers under output keys, before their task is submitted.

        Raises: KeyExists naming a key that has a value, or that another live task will write; PermissionDenied naming one that is
            somebody else's. A key whose task ended without a result, or was never submitted, is free for its owner.
        """
        for error in self.claim_pointers(list(outputs), overwrite=overwrite, timeout=timeout).values():
            raise error

    def claim_pointers(
        self,
        wanted: Sequence[tuple[str, Pointer]],
        *,
        overwrite: bool,
        decided: Callable[[], None] | None = None,
        timeout: float = 30.0,
    ) -> dict[int, RmgrError]:
        """As `procedures.claims.claim_pointers`; the keys are known to be taken from now on."""
        from rmgr.procedures.claims import claim_pointers

        refused = claim_pointers(self, wanted, overwrite=overwrite, decided=decided, timeout=timeout)
        self.seen.add(key for key, _ in wanted)
        return refused

    def check_free(self, key: str, *, timeout: float = 30.0) -> None:
        """Raises KeyExists when the output key has a value, or when a live task will write it; PermissionDenied: it is somebody else's."""
        from rmgr.procedures.claims import look

        for error in look(self, [(key, None)], overwrite=False, timeout=timeout).refused.values():
            raise error
