"""The live event log: every fact and pass of the leader's scheduler, stored in pieces in the data store, for export and replay.

One log covers one state, from its rebuild until it is dropped: `events/<epoch>/<log>/<piece>`. Lines not yet written when a leader dies
are missing at the end of its log; nothing waits for the log. All facts go through `StateUpdates`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from rmgr.coord.protocol import keys
from rmgr.daemons.leader.placement.pipeline import named, pipeline_of
from rmgr.daemons.leader.term import Term
from rmgr.errors import RmgrError
from rmgr.model.queue import ClusterSettings, PipelineSpec
from rmgr.runtime.mailbox import Timer
from rmgr.runtime.story import Story
from rmgr.sched.plan import Plan
from rmgr.sched.policy import Cause
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import Recorder, encode

#: Lines are written after this time, or at this number of bytes.
EVERY_S, PIECE_BYTES = 2.0, 256 * 1024
#: Most pieces that wait while the store is away; later ones are dropped.
MOST_PIECES = 64


class LogPieces:
    """Logs of one kind, of one leader, in pieces in the store. In the leader's loop.

    Args: family: of their keys. ttl_s: how long new pieces are kept, None = without limit.
    """

    def __init__(self, term: Term, family: str = keys.EVENTS, ttl_s: Callable[[], float | None] = lambda: None) -> None:
        self._term = term
        self._family = family
        self._ttl_s = ttl_s
        self._log = -1
        self._piece = 0
        self._lines: list[str] = []
        self._bytes = 0
        self._unwritten = 0
        self._timer: Timer | None = None

    @property
    def has_room(self) -> bool:
        """Whether the store keeps up. From any thread."""
        return self._unwritten < MOST_PIECES

    def begin(self) -> None:
        """Begins another log."""
        self.flush()
        self._log += 1
        self._piece = 0

    def write(self, line: str) -> None:
        """Adds a line to the log; it is stored within EVERY_S."""
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= PIECE_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = self._term.after(EVERY_S, self.flush)

    def flush(self) -> None:
        """Stores the collected lines, or drops them if the store has been away for long."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines, self._bytes = self._lines, [], 0
        if lines and self.has_room:
            self.put(lambda: "".join(lines).encode())

    def put(self, text: Callable[[], bytes]) -> None:
        """Stores a piece; `text` is made on a store thread, so that it does not delay the loop."""
        key = keys.events(self._term.epoch, self._log, self._piece, family=self._family)
        self._piece += 1
        self._unwritten += 1
        self._term.tell(self._put(key, text, self._ttl_s()), key)

    def _put(self, key: str, text: Callable[[], bytes], ttl_s: float | None) -> Story[None]:
        try:
            yield self._term.in_store(lambda store: store.put(key, text(), ttl_s=ttl_s))
        except RmgrError as error:
            self._term.log.warning("events_not_written", key=key, error=error.message)
        self._unwritten -= 1


class StateUpdates:
    """Passes all facts of one leadership to the state and its log. In the leader's loop.

    Args: wake: asks for a turn of placement; repeated calls cause one turn.
    Attributes: causes: why the next pass is due.
    """

    def __init__(self, term: Term, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.causes: frozenset[Cause] = frozenset()
        self._term = term
        self._pieces = LogPieces(term)
        self._recorder: Recorder | None = None  # of the current log
        self._now_us = self._term.wall_us()

    def now_us(self) -> int:
        """Returns the scheduler's time: the wall clock, but never going back."""
        self._now_us = max(self._now_us, self._term.wall_us())
        return self._now_us

    def tell(self, state: ClusterState, fact: str, *arguments: object, **named: object) -> None:
        """Passes one fact to the state and to the log."""
        getattr(state, fact)(*arguments, **named)
        if self._recorder is not None:
            self._recorder.told(self._now_us, fact, arguments, named)

    def because(self, cause: Cause) -> None:
        """Adds a cause for the next pass."""
        self.causes |= {cause}

    def take_causes(self) -> frozenset[Cause]:
        """Returns the causes of this pass, and resets them."""
        causes, self.causes = self.causes, frozenset()
        return causes

    def passed(self, now_us: int, causes: frozenset[Cause], plan: Plan) -> None:
        """Logs a pass whose plan is carried out at this time."""
        if self._recorder is not None:
            self._recorder.passed(now_us, causes, plan)

    def begin_log(
        self,
        state: ClusterState,
        settings: ClusterSettings,
        partitions: Collection[str],
        *,
        half_life_us: int,
        instead: Mapping[str, str],
    ) -> None:
        """Begins the log of a new state and of the pipelines of these partitions. instead: partition -> policy that replaces its own."""
        self.end_log()
        self._pieces.begin()
        pipelines = {partition: pipeline_of(settings, partition) for partition in sorted(partitions)}
        pipelines |= {partition: named(partition, policy, {}) for partition, policy in instead.items() if partition in pipelines}
        policy, parameters = _only_policy(pipelines)
        self._recorder = Recorder(
            self._pieces.write,
            policy=policy,
            parameters=parameters,
            about={"epoch": self._term.epoch},
            pipelines={partition: spec.tables() for partition, spec in pipelines.items()},
        )
        opening = self._recorder.opening(state, seed=0, half_life_us=half_life_us)
        self._pieces.put(lambda: encode(opening).encode() + b"\n")

    def end_log(self) -> None:
        """Ends the log, if there is one: another begins, the state is dropped, or the leadership is over."""
        if self._recorder is not None:
            self._recorder.end(self._now_us)
            self._recorder = None
        self._pieces.flush()


def _only_policy(pipelines: Mapping[str, PipelineSpec]) -> tuple[str, dict[str, str]]:
    """Returns the policy and its parameters if there is only one; otherwise the names of the pipelines."""
    stages = [stage for spec in pipelines.values() for stage in spec.tables().get("stage", [])]
    if len(stages) == 1 and stages[0].get("policy"):
        return str(stages[0]["policy"]), {name: str(value) for name, value in stages[0].get("parameters", {}).items()}
    return ", ".join(dict.fromkeys(spec.name or "pipeline" for spec in pipelines.values())), {}
