"""Ends a gateway that answers nobody any more, so that another one takes its place: clients go on there, or at the next one.

The stall guard looks at the main loop, and ZooKeeper at its session; both can be well while the server is dead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmgr.runtime import machine
from rmgr.runtime.stall import StallGuard

#: How often the server is asked, how long an answer may take, and after how long without any the process ends. A flood costs some seconds.
_ASK_S, _ANSWER_S, MUTE_S = 5.0, 10.0, 60.0


class VoiceCheck:
    """Args:
    is_mute: `RpcServer.is_mute`. guard: ends the process (default: with all stacks, see `runtime.stall`); pause_s, answer_s: for tests.
    """

    def __init__(
        self,
        is_mute: Callable[[float], bool],
        guard: StallGuard | None = None,
        *,
        pause_s: float = _ASK_S,
        answer_s: float = _ANSWER_S,
    ) -> None:
        self._is_mute = is_mute
        self._guard = guard or StallGuard(MUTE_S, name="the gateway's server: it answers no call")
        self._pause_s = pause_s
        self._answer_s = answer_s
        self._stopped = threading.Event()

    def start(self) -> VoiceCheck:
        """Begins to ask."""
        self._guard.start()
        machine.Thread(target=self._run, name="own-voice", daemon=True).start()
        return self

    def stop(self) -> None:
        """Idempotent."""
        self._guard.stop()
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            if not self._is_mute(self._answer_s):
                self._guard.progress()
