"""Writes the log of a scheduler (`event_log.py`) as it happens: each fact, each pass. Pure: lines go to whoever writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rmgr.sched.order import Cause
from rmgr.sched.plan import Plan
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import AT_ONCE, End, Entry, Opening, Passed, described, encode, fact


class Recorder:
    """Writes one log. `because`: the reason of the facts that are told next."""

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        policy: str,
        parameters: Mapping[str, str],
        about: Mapping[str, Any],
        pipelines: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._write = write
        self._pipelines = pipelines or {}
        self._policy, self._parameters, self._about = policy, dict(parameters), about
        self._facts = self._passes = 0
        self.because = ""

    def begin(self, state: ClusterState, *, seed: int, half_life_us: int) -> None:
        """The first line."""
        self._line(self.opening(state, seed=seed, half_life_us=half_life_us))

    def opening(self, state: ClusterState, *, seed: int, half_life_us: int) -> Opening:
        """The first line as a value, for who writes it himself: with many jobs its text takes a while. Cost: O(records)."""
        return Opening(self._policy, self._parameters, seed, state.snapshot(), AT_ONCE, half_life_us, self._about, self._pipelines)

    def around(self, state: ClusterState, now: Callable[[], int]) -> ClusterState:
        """The state, where each fact is also written down."""
        return _Telling(state, self, now)  # type: ignore[return-value]  # it has its facts, and nothing else is asked of it

    def told(self, now_us: int, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self._facts += 1
        self._line(fact(now_us, name, arguments, named, self.because))

    def passed(self, now_us: int, causes: frozenset[Cause], plan: Plan) -> None:
        self._passes += 1
        self._line(Passed(now_us, self._passes, tuple(sorted(causes)), described(plan.decisions)))

    def end(self, now_us: int) -> None:
        """The last line."""
        self._line(End(now_us, self._facts, self._passes))

    def _line(self, entry: Entry) -> None:
        self._write(encode(entry) + "\n")


class _Telling:
    def __init__(self, state: ClusterState, recorder: Recorder, now: Callable[[], int]) -> None:
        self._state, self._recorder, self._now = state, recorder, now

    def __getattr__(self, name: str) -> Callable[..., Any]:
        tell = getattr(self._state, name)

        def told(*arguments: Any, **named: Any) -> Any:
            self._recorder.told(self._now(), name, arguments, named)
            return tell(*arguments, **named)

        return told
