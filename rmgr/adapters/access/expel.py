"""Streams that are under way end when the key of whoever opened them is revoked: logs, terminals, tunnels, large values.

A call alone is looked at when it begins. A stream lasts as long as its caller likes, so it is looked at again twice a second; those on
which clients speak of work look by themselves (`gateway/talk.py`), and tell why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc

from rmgr.errors import PermissionDenied, RmgrError, Unavailable
from rmgr.model.cluster.identity import Identity

#: What a client whose key was revoked is told.
_WHY, _HINT = "your key was revoked", "ask the cluster's admin for a new one"
#: Streams that end themselves, with a reason.
_OWN = frozenset({"/rmgr.v1.Work/Talk"})
_LOOK_S = 0.5
#: A thread that has nothing to look at ends after so many looks.
_IDLE_LOOKS = 20


class Expeller:
    """Ends the streams of one server's expelled users. Thread-safe; has a thread only while there are streams.

    Args: is_revoked: told a key id. expelled: told (method, who) of each stream that was ended.
    """

    def __init__(self, is_revoked: Callable[[str], bool], expelled: Callable[[str, Identity], None]) -> None:
        self._is_revoked = is_revoked
        self._expelled = expelled
        self._live: dict[grpc.ServicerContext, tuple[str, Identity]] = {}
        self._lock = threading.Lock()
        self._looks = False

    def watch(self, method: str, who: Identity, context: grpc.ServicerContext) -> None:
        """The stream has begun. Cost: 5 us. Raises Unavailable where there is no thread to look at it: it is not to go on then."""
        if method in _OWN:
            return
        with self._lock:
            if not self._looks:
                try:
                    threading.Thread(target=self._look, name="rpc-revoked", daemon=True).start()
                except RuntimeError as error:
                    raise Unavailable(f"this daemon has no thread left ({error})", hint="try again; rmgr doctor") from None
                self._looks = True
            self._live[context] = method, who
        if not context.add_callback(lambda: self._over(context)):
            self._over(context)

    def _over(self, context: grpc.ServicerContext) -> None:
        with self._lock:
            self._live.pop(context, None)

    def _look(self) -> None:
        pause = threading.Event()
        idle = 0
        while True:
            pause.wait(_LOOK_S)
            with self._lock:
                live = list(self._live.items())
                idle = 0 if live else idle + 1
                if idle > _IDLE_LOOKS:
                    self._looks = False
                    return
            for context, (method, who) in live:
                if self._is_revoked(who.key_id):
                    self._over(context)
                    context.cancel()
                    self._expelled(method, who)


def expel(drain: Callable[[], bool], say: Callable[[RmgrError], None], cut: Callable[[str], None]) -> None:
    """Ends a stream: nothing more is taken from it, and its client is told why; who has not taken that by the next call is cut off.

    Args: drain: returns whether that was so before.
    """
    if drain():
        cut("revoked")
    else:
        say(PermissionDenied(_WHY, hint=_HINT))
