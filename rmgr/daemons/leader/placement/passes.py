"""Runs passes in a thread of their own, plug-ins in processes of their own, and FCFS in place of a failed policy.

A policy that does not return is abandoned, and FCFS replaces it for a while, only in its partition. This is not recorded: the next leader
finds out again, at the cost of one pass of that partition.

The policies of plug-ins run in one process per partition (`plugin_child.py`), while the leader goes on; its next pass vets their plans.
A request is a copy of the partition's records, so a policy can waste only its own time and memory, and both are bounded. It is no
sandbox: the process has the user and the files of the WatchDog. Everything runs in the leader's loop unless stated otherwise.
"""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from rmgr.adapters.access.server_threads import Silence
from rmgr.daemons.leader.placement.plugin_child import LENGTH
from rmgr.daemons.leader.term import Term
from rmgr.errors import UNREADABLE_TEXT
from rmgr.model.units import format_duration, utc
from rmgr.runtime import machine
from rmgr.runtime.story import Story
from rmgr.sched.catalogue import policy_named
from rmgr.sched.engine import run_pass
from rmgr.sched.plan import Fault, Plan, WakeAt
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState, records_of
from rmgr.sched.state.event_log import LogError
from rmgr.sched.vetting import ForeignPlan, OutOfDate, Repeats, Vetted, decode_plan

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.placer import Placer

#: Time after which a partition's configured pipeline is tried again.
BENCH_S = 300.0
#: The policy that replaces a failed one.
INSTEAD = "fcfs"
#: Characters of an error that are kept: a policy may raise very long ones.
_MOST_CHARACTERS = 500
#: Time limit of one pass.
LIMIT_S = 10.0
#: Refused plans in a row after which a plug-in's policy counts as failed.
_MOST_REFUSED = 10
#: Time limit of a plug-in's pass; extra time of its first one, which imports the policy; memory besides the interpreter's code.
POLICY_LIMIT_S, START_S, MOST_BYTES = 5.0, 5.0, 768 << 20
#: Seconds between two looks at a plug-in that is waited for.
_LOOK_S = 0.25
#: More bytes than any plan has.
_MOST_ANSWER = 64 << 20
#: The process ends itself this long after the leader should have killed it: longer than a machine stalls, which stops both.
_SPARE_S = 30.0


@dataclass(frozen=True, slots=True)
class PlacementPause:
    """A partition whose own pipeline is suspended until `until_s` (monotonic; `until_us` for display).

    is_stopped: FCFS has failed there, too, so nothing is placed.
    """

    policy: str
    error: str
    until_s: float
    until_us: int
    is_stopped: bool = False


class Faults:
    """Failures by policy and by partition. In the leader's loop.

    Args: changed: called when another pipeline takes over placement in a partition.
    Attributes: counts, last: policy -> number of failures, last error. benched: by partition.
    """

    def __init__(self, term: Term, changed: Callable[[], None] = lambda: None) -> None:
        self.counts: Counter[str] = Counter()
        self.last: dict[str, str] = {}
        self.benched: dict[str, PlacementPause] = {}
        self._term = term
        self._changed = changed
        self._fcfs = policy_named(INSTEAD)

    def add(self, partition: str, policy: str, error: str) -> None:
        """Records a failure: FCFS replaces the policy in the partition, or nothing does if FCFS itself failed."""
        error = error[:_MOST_CHARACTERS]
        is_new = self.last.get(policy) != error
        self.counts[policy] += 1
        self.last[policy] = error
        self._term.metrics.policy_faults.inc()
        before = self.benched.get(partition)
        until_s = self._term.clock() + BENCH_S
        until_us = self._term.wall_us() + round(BENCH_S * 1e6)
        if before is None:
            bench = PlacementPause(policy, error, until_s, until_us)
        else:
            bench = PlacementPause(before.policy, f"{before.error}; {INSTEAD}: {error}", until_s, until_us, is_stopped=True)
        self.benched[partition] = bench
        if is_new:
            self._term.log.error("policy_failed", policy=policy, partition=partition, error=error, why=self.told(partition))
        self._term.after(BENCH_S, self._unbench_due)
        self._changed()

    def served(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """Returns the stages that place now, with FCFS for benched partitions. Cost: nothing if there are none."""
        if not self.benched:
            return stages
        kept = [stage for stage in stages if not self.is_benched(stage)]
        return (*kept, *(Stage(self._fcfs, (partition,)) for partition, bench in sorted(self.benched.items()) if not bench.is_stopped))

    def is_benched(self, stage: Stage) -> bool:
        """Whether another policy places instead of this stage."""
        return any(partition in self.benched for partition in stage.partitions)

    def forgive(self, partition: str) -> None:
        """Ends the bench of a partition that has another pipeline now."""
        self.benched.pop(partition, None)

    def told(self, partition: str) -> str:
        """Returns what places there instead of the policy, until when and why; "" if the pipeline itself places."""
        bench = self.benched.get(partition)
        if bench is None:
            return ""
        who = "nobody places jobs" if bench.is_stopped else f"{INSTEAD} places jobs"
        return f"policy {bench.policy} failed ({bench.error}): {who} in its place until {utc(bench.until_us)}"

    @property
    def instead(self) -> dict[str, str]:
        """Partition -> the policy that replaces its own."""
        return dict.fromkeys(self.benched, INSTEAD)

    def is_stopped(self, partition: str) -> bool:
        """Whether nothing places in the partition, because FCFS has failed, too."""
        bench = self.benched.get(partition)
        return bench is not None and bench.is_stopped

    def _unbench_due(self) -> None:
        now_s = self._term.clock()
        over = [partition for partition, bench in self.benched.items() if bench.until_s <= now_s]
        for partition in over:
            self._term.log.info("policy_tried_again", policy=self.benched.pop(partition).policy, partition=partition)
        if over:
            self._changed()


class PassLost(Exception):
    """Raised when a pass ends without a plan: its state is lost, too. The message says why."""


class Passes:
    """Runs passes, one at a time.

    Args:
        forgives: returns whether a fault is to be ignored. limit_s: time limit of a pass.
        inline: passes run at once in the loop (for tests that move the clock by hand).
    """

    def __init__(
        self,
        term: Term,
        faults: Faults,
        *,
        forgives: Callable[[Fault], bool] = lambda _: False,
        limit_s: float = LIMIT_S,
        inline: bool = False,
    ) -> None:
        self.faults = faults
        self._term = term
        self._forgives = forgives
        self._inline = inline
        self._limit_s = limit_s
        self._thread = _Thread()
        self._running: Future[tuple[Plan, float]] | None = None
        self._turn = ("", "")  # policy and partition at work

    @property
    def is_running(self) -> bool:
        """Whether a pass is running: then the state must not be touched."""
        return self._running is not None

    def run(self, state: ClusterState, causes: frozenset[Cause], stages: tuple[Stage, ...], *, now_us: int) -> Story[tuple[Plan, float]]:
        """Runs one pass. Returns its plan and duration in s. Raises: PassLost."""
        served = self.faults.served(stages)
        pipeline = tuple(Stage(Vetted(stage.policy, self._at_turn), stage.partitions) for stage in served)  # type: ignore[arg-type]
        answer: Future[tuple[Plan, float]] = Future()
        end_s = self._term.clock() + self._limit_s

        def work() -> None:
            began_s = machine.perf_counter()
            with suppress(InvalidStateError):  # it was given up
                try:
                    plan = run_pass(state, causes, now=now_us, seed=0, pipeline=pipeline, expired=lambda: self._term.clock() > end_s)
                except Exception as error:  # noqa: BLE001 - a defect of the scheduler, or of a record: only another state can help
                    answer.set_exception(error)
                else:
                    answer.set_result((plan, machine.perf_counter() - began_s))

        self._running = answer
        timer = None
        if self._inline:
            work()
        else:
            timer = self._term.after(self._limit_s * 1.5, lambda: self._give_up(answer))
            self._thread.submit(work)
        try:
            plan, took_s = yield answer
        except PassLost:
            raise
        except Exception as error:
            self._term.metrics.loop_errors.inc()
            self._term.log.error("pass_failed", error=f"{type(error).__name__}: {error}", exc_info=error)
            raise PassLost(f"the pass failed: {type(error).__name__}: {error}") from error
        finally:
            self._running = None
            if timer is not None:
                timer.cancel()
        for fault in plan.faults:
            if not self._forgives(fault):
                self.faults.add(fault.partition, fault.policy, fault.error)
        return plan, took_s

    def close(self) -> None:
        """Drops the pass under way."""
        self._running = None
        self._thread.stop()

    def _at_turn(self, policy: str, partition: str) -> None:
        self._turn = (policy, partition)

    def _give_up(self, answer: Future[tuple[Plan, float]]) -> None:
        """Abandons a stuck pass: a Python thread cannot be ended, so it keeps running on the old state."""
        policy, partition = self._turn
        with suppress(InvalidStateError):  # it has just ended
            answer.set_exception(PassLost(f"policy {policy} is stuck with the old state"))
            self.faults.add(partition, policy, f"did not end within {format_duration(self._limit_s * 1.5)}")
            self._thread.stop()
            self._thread = _Thread()


class _Thread:
    """One thread that runs what it is given, and does not keep the process alive."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = False

    def submit(self, work: Callable[[], None]) -> None:
        if not self._started:
            self._started = True
            machine.Thread(target=self._run, name="pass", daemon=True).start()
        self._work.put(work)

    def stop(self) -> None:
        """Ends the thread after its current work."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class PolicyAnswer(NamedTuple):
    """Answer of a policy process. policies: names of the stages, as in the records. half_life_us: of the use
    that they consider, 0 if they do not.
    """

    problem: str = ""
    told: ForeignPlan = ForeignPlan()
    policies: tuple[str, ...] = ()
    half_life_us: int = 0


@dataclass(slots=True, kw_only=True)
class _Partition:
    """One partition with plug-ins. document: its pipeline. told: what passes repeat until the next plan comes."""

    document: Mapping[str, Any]
    named: str
    process: PolicyProcess = field(default_factory=lambda: PolicyProcess(POLICY_LIMIT_S))
    requests: SimpleQueue[dict[str, Any] | None] = field(default_factory=SimpleQueue)
    asked: ClusterState | None = None  #: the state of the pending request
    causes: frozenset[Cause] = frozenset()  #: of the next request
    policies: tuple[str, ...] = ()  #: () until the first answer
    told: ForeignPlan = ForeignPlan()
    has_plan: bool = False  #: `told` is to be carried out
    refused: int = 0  #: outdated plans in a row
    half_life_us: int = 0

    @property
    def is_due(self) -> bool:
        """Whether a request is due now."""
        return bool(self.causes) and self.asked is None and not self.has_plan


class Foreign:
    """Asks processes for plans, one request at a time for each partition."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._term = placer.term
        self._faults = placer.faults
        self._parts: dict[str, _Partition] = {}

    def __contains__(self, partition: str) -> bool:
        return partition in self._parts

    def serve(self, documents: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
        """Serves exactly these partitions: partition -> (name of its pipeline, its document). An unchanged one keeps its process."""
        for partition in [name for name, part in self._parts.items() if documents.get(name) != (part.named, part.document)]:
            part = self._parts.pop(partition)
            part.requests.put(None)
            part.process.close()
        for partition, (named, document) in documents.items():
            if partition not in self._parts:
                part = self._parts[partition] = _Partition(document=document, named=named)
                machine.Thread(target=self._run, args=(partition, part), name=f"policy-{partition}", daemon=True).start()

    def close(self) -> None:
        """Ends every process: the leadership is over."""
        self.serve({})

    @property
    def half_life_us(self) -> int:
        """Half-life of the use that these policies consider, as far as known; 0 if they do not."""
        return next((part.half_life_us for part in self._parts.values() if part.half_life_us), 0)

    @property
    def has_plan(self) -> bool:
        """Whether a plan is to be carried out."""
        return any(part.has_plan for part in self._parts.values())

    @property
    def has_work(self) -> bool:
        """Whether a plan is to be carried out, or a request is due."""
        return any(part.has_plan or part.is_due for part in self._parts.values())

    def ask(self, state: ClusterState, causes: frozenset[Cause], now_us: int) -> None:
        """Requests a plan for every partition that has jobs. Cost: O(its records) in the loop; the rest runs elsewhere."""
        for partition, part in self._parts.items():
            here = state.partitions.get(partition)
            part.causes |= causes
            if here is None or partition in self._faults.benched or not (here.jobs or here.notes or here.suspended or here.holds):
                part.causes = frozenset()
            if not part.is_due or here is None:
                continue
            part.asked = state
            part.requests.put(
                {
                    "partition": partition,
                    "document": part.document,
                    "snapshot": records_of((here,), state.usage),
                    "causes": part.causes,
                    "now_us": now_us,
                    "half_life_us": state.usage_half_life_us,
                }
            )
            part.causes = frozenset()

    def stages(self, now_us: int) -> tuple[Stage, ...]:
        """Returns what these policies planned, for the next pass; without news, why their jobs wait and when to ask again."""
        found: list[Stage] = []
        for partition, part in self._parts.items():
            if not part.policies or partition in self._faults.benched:
                continue  # before the first answer the owners of records are unknown
            told, (first, *others) = part.told, part.policies
            found += [_stage(first, told, partition), *(_stage(name, ForeignPlan(), partition) for name in others)]
            wakes = tuple(decision for decision in told.decisions if type(decision) is WakeAt and decision.at_us > now_us)
            if part.has_plan and any(type(decision) is WakeAt and decision.at_us <= now_us for decision in told.decisions):
                part.causes |= {Cause.TIMER}  # the timer expired before the plan came
            part.told, part.has_plan = ForeignPlan(decisions=wakes, left=told.left, rest=told.rest), False
        return tuple(found)

    def is_forgiven(self, fault: Fault) -> bool:
        """Forgives an outdated plan, which is made again. Too many in a row are the policy's fault."""
        part = self._parts.get(fault.partition)
        if part is None or not fault.error.startswith(OutOfDate.__name__):
            return False
        part.refused += 1
        part.told, part.causes = ForeignPlan(), part.causes | {Cause.TIMER}
        if part.refused >= _MOST_REFUSED:
            self._faults.add(fault.partition, part.named, f"{part.refused} plans in a row could not be carried out: {fault.error}")
        return True

    def passed(self, faults: Iterable[Fault]) -> None:
        """Resets the counts of refused plans of partitions without a fault in this pass."""
        faulty = {fault.partition for fault in faults}
        for partition, part in self._parts.items():
            if partition not in faulty:
                part.refused = 0

    # -- its thread

    def _run(self, partition: str, part: _Partition) -> None:
        """Asks the process, one request after the other."""
        while (request := part.requests.get()) is not None:
            try:
                answer = _read(part.process.ask(request), partition)
            except (PolicyFailed, LogError) as error:
                answer = PolicyAnswer(str(error))
            except Exception as error:  # noqa: BLE001 - loop boundary of the thread: whatever it is, the leader is told
                answer = PolicyAnswer(f"{type(error).__name__}: {error}")
            if answer.problem:
                part.process.end()  # its memory is freed, too
            self._term.soon(self._on_answer, partition, part, answer)
        part.process.end()

    def _on_answer(self, partition: str, part: _Partition, answer: PolicyAnswer) -> None:
        """Takes an answer, in the loop."""
        asked, part.asked = part.asked, None
        if self._parts.get(partition) is not part:
            return
        if answer.problem:
            part.told, part.has_plan = ForeignPlan(), False
            self._faults.add(partition, part.named, answer.problem)
            return
        part.policies = answer.policies
        if asked is self._placer.state:
            part.told, part.has_plan = answer.told, True
        else:
            part.causes |= {Cause.TAKE_OVER}
        if answer.half_life_us != part.half_life_us:
            part.half_life_us = answer.half_life_us
            self._placer.relearned()
        self._placer.wake()


def _stage(policy: str, told: ForeignPlan, partition: str) -> Stage:
    return Stage(Repeats(policy, told), (partition,))  # type: ignore[arg-type]  # its name is that of the policy that it repeats


def _read(answer: Mapping[str, Any], partition: str) -> PolicyAnswer:
    """Decodes an answer. Raises: LogError for an invalid plan."""
    told = decode_plan(answer.get("plan", {}), partition)
    problem = "; ".join(f"{fault.policy}: {fault.error}" for fault in told.faults)
    return PolicyAnswer(problem, told, tuple(map(str, answer["policies"])), int(answer["half_life_us"]))


class PolicyFailed(Exception):
    """Raised when there is no answer; the message says why."""


class PolicyProcess:
    """One process, started on demand, also after it was ended. Used by one thread at a time; `close` from any thread."""

    def __init__(self, limit_s: float = POLICY_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer. Waits at most `limit_s`, and START_S more if the process must be started.

        Raises: PolicyFailed if the process raised, ended, or did not answer in time and was killed.
        """
        is_new = self._running is None
        limit_s = self._limit_s + (START_S if is_new else 0.0)
        line, waited = self._start(self._limit_s + START_S + _SPARE_S), Silence(_LOOK_S, machine.monotonic)
        data = pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
        try:
            line.settimeout(limit_s)
            line.sendall(LENGTH.pack(len(data)) + data)
            line.settimeout(_LOOK_S)
            (length,) = LENGTH.unpack(_received(line, LENGTH.size, waited, limit_s))
            if length > _MOST_ANSWER:
                raise PolicyFailed(f"its answer has {length} bytes")
            answer = json.loads(_received(line, length, waited, limit_s))
        except TimeoutError:
            self.end()
            raise PolicyFailed(f"did not end within {format_duration(limit_s)}") from None
        except (EOFError, ConnectionError):
            code = self.end()
            raise PolicyFailed(f"its process ended ({f'signal {-code}' if code < 0 else f'exit code {code}'})") from None
        except UNREADABLE_TEXT as error:
            self.end()
            raise PolicyFailed(f"its answer cannot be read: {error}") from error
        if not isinstance(answer, dict) or "error" in answer:
            raise PolicyFailed(str(answer["error"] if isinstance(answer, dict) else "no answer"))
        return answer

    def end(self) -> int:
        """Kills the process. Returns its exit code."""
        with self._lock:
            running, self._running = self._running, None
            if running is None:
                return 0
            child, line = running
            child.kill()
            line.close()
            return child.wait()

    def close(self) -> None:
        """Kills the process permanently; a request under way fails."""
        self._closed = True
        running = self._running
        if running is not None:
            running[0].kill()  # the asking thread notices, and ends it

    def _start(self, seconds: float) -> socket.socket:
        with self._lock:
            if self._closed:
                raise PolicyFailed("the leadership is over")
            if self._running is None:
                mine, its = socket.socketpair()
                words = [sys.executable, "-m", "rmgr.daemons.leader.placement.plugin_child", str(seconds), str(MOST_BYTES)]
                nowhere = subprocess.DEVNULL
                try:
                    child = subprocess.Popen(words, stdin=its.fileno(), stdout=nowhere, stderr=nowhere, start_new_session=True)
                except OSError as error:
                    mine.close()
                    raise PolicyFailed(f"its process cannot be started: {error}") from error
                finally:
                    its.close()
                self._running = child, mine
            return self._running[1]


def _received(line: socket.socket, length: int, waited: Silence, limit_s: float) -> bytes:
    """Returns bytes of a line whose calls end after `_LOOK_S`. What the leader stands still itself is not the policy's time.

    Raises: TimeoutError, EOFError, ConnectionError.
    """
    parts = bytearray()
    while len(parts) < length:
        if waited.look() > limit_s:
            raise TimeoutError
        try:
            part = line.recv(min(1 << 20, length - len(parts)))
        except TimeoutError:
            continue
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
