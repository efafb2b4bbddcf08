"""Ended submissions, as a Starter needs them: what was signed for them is not run any more (`coord/decisions/ended.py`).

The bits of a directory of a thousand are read once and watched. As long as the watch has not fired they are as new as
anything that has been read since on the same connection: ZooKeeper tells of a change before it answers with what came after
it. So a submission costs no reading of its own.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from rmgr.coord.decisions import ended
from rmgr.coord.decisions.ended import BUCKET, Ended
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError
from rmgr.runtime import machine

#: Directories kept.
_KEEP = 64
#: Bits that were asked for this lately are read again as soon as they change (s).
_LATELY_S = 5.0


@dataclass(slots=True, eq=False)
class _Bucket:
    """One directory. is_known: the watch stands; the thread of the connection takes it away when the watch fires."""

    number: int
    bits: bytes = b""
    is_over: bool = False  #: all of it has ended, for ever
    is_known: bool = False
    is_asking: bool = False
    has_fired: bool = False
    used_s: float = -math.inf  #: when the bits were asked for last


class Endings:
    """Ended submissions of one Starter; the owner's thread, but for the watches.

    Args: post: puts a call into the owner's mailbox. wake: tells the owner that something came.
    Attributes: generation: counts the changes of what is known.
    """

    def __init__(self, coordinator: Coordinator, *, post: Callable[[Callable[[], None]], None], wake: Callable[[], None]) -> None:
        self.generation = 0
        self._coordinator = coordinator
        self._post = post
        self._wake = wake
        self._buckets: OrderedDict[int, _Bucket] = OrderedDict()

    def look(self, number: int) -> bool | None:
        """Whether the submission has ended, no older than anything that was read before; None: `ask`. Cost: 1 us."""
        bucket = self._buckets.get(number // BUCKET)
        if bucket is None or not (bucket.is_over or (bucket.is_known and not bucket.has_fired)):
            return None
        bucket.used_s = machine.monotonic()
        return bucket.is_over or ended.holds(bucket.bits, number)

    def last(self, number: int) -> bool:
        """It was seen to have ended: that never changes."""
        bucket = self._buckets.get(number // BUCKET)
        return bucket is not None and (bucket.is_over or ended.holds(bucket.bits, number))

    def ask(self, number: int) -> None:
        """Reads the bits, unless they are known or on their way; `wake` follows. After the record was asked for."""
        if self.look(number) is None:
            bucket = self._buckets.setdefault(number // BUCKET, _Bucket(number=number // BUCKET))
            self._buckets.move_to_end(bucket.number)
            bucket.used_s = machine.monotonic()
            self._read(bucket)
            while len(self._buckets) > _KEEP:
                self._buckets.popitem(last=False)

    # -- inside

    def _read(self, bucket: _Bucket) -> None:
        if bucket.is_asking:
            return
        bucket.is_asking, bucket.has_fired, bucket.is_known = True, False, False
        path = paths.ended(bucket.number)
        # The watch first, also on what is not there yet; the bits before the mark that replaces them.
        self._coordinator.stat(path, watch=partial(self._fired, bucket))
        bits = self._coordinator.get(path)
        below = self._coordinator.get(paths.ENDED)
        below.add_done_callback(lambda _: self._post(partial(self._arrived, bucket, bits, below)))

    def _fired(self, bucket: _Bucket) -> None:
        """On the thread of the connection: from here on nothing is believed of it."""
        bucket.has_fired = True
        self._post(partial(self._changed, bucket))

    def _changed(self, bucket: _Bucket) -> None:
        is_kept = self._buckets.get(bucket.number) is bucket
        if is_kept and bucket.has_fired and machine.monotonic() - bucket.used_s < _LATELY_S:
            self._read(bucket)

    def _arrived(self, bucket: _Bucket, bits: Future[Stamped | None], below: Future[Stamped | None]) -> None:
        bucket.is_asking = False
        try:
            found, mark = bits.result(0), below.result(0)
            low = decode_record(mark.data, Ended, paths.ENDED).below if mark is not None and mark.data else 0
        except (RmgrError, TimeoutError):
            return  # asked again at the next use
        before = bucket.bits, bucket.is_over
        if found is not None:
            bucket.bits = found.data
        bucket.is_over = bucket.is_over or bucket.number < low
        bucket.is_known = True
        if (bucket.bits, bucket.is_over) != before:
            self.generation += 1
        if bucket.has_fired:
            self._changed(bucket)
        self._wake()
