"""Records of calls in a partition beyond those that wait: measurements of servers over time, answered calls, learnt performance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmgr.sched.records import Answered, Learnt, Server

#: Measurements kept of each server, the latest included.
MEASUREMENTS = 8
#: Answered calls kept.
ANSWERED = 20
#: Learnt performances kept of a partition; the one that the fewest calls showed goes first.
LEARNT = 4096
#: Weight of a new answer in learnt performance, once there are as many as its inverse.
_WEIGHT = 0.1


class CallRecords:
    """Bounded, and the same whatever order its records are read back in."""

    __slots__ = ("answered", "learnt", "measured")

    def __init__(self) -> None:
        self.measured: dict[str, tuple[Server, ...]] = {}  #: by server, the oldest first
        self.answered: tuple[Answered, ...] = ()  #: the oldest first
        self.learnt: dict[tuple[str, str, int], Learnt] = {}  #: by (server, function, power of two)

    def measure(self, server: Server) -> None:
        """Adds a measurement. One of an earlier life of the server says nothing of this one: those before go."""
        before: Sequence[Server] = self.measured.get(server.name, ())
        if before and before[-1].life != server.life:
            before = ()
        self.measured[server.name] = (*(old for old in before if old.at_us < server.at_us), server)[-MEASUREMENTS:]

    def answer(self, answered: Answered) -> None:
        """Adds an answered call, and what it shows of its server's performance: a mean first, then a moving average."""
        self.answered = tuple(sorted((*self.answered, answered), key=_when))[-ANSWERED:]
        if answered.operations <= 0 or answered.service_us <= 0:
            return
        key = (answered.server, answered.function, power_of(answered.operations))
        rate = answered.operations * 1e6 / answered.service_us
        known = self.learnt.get(key)
        if known is None:
            known = Learnt(*key, rate, 1, answered.partition)
        else:
            calls, mean = known.calls + 1, known.operations_per_s
            known = known._replace(operations_per_s=mean + max(1.0 / calls, _WEIGHT) * (rate - mean), calls=calls)
        self.learnt[key] = known
        if len(self.learnt) > LEARNT:
            least = min((other for other in self.learnt.values() if other is not known), key=lambda other: (other.calls, other))
            del self.learnt[least.server, least.function, least.power]

    def speed(self, server: str, function: str, operations: int) -> float | None:
        """Learnt operations/s, of the nearest size where this one was never seen; None when nothing of the function was."""
        power = power_of(operations)
        known = self.learnt.get((server, function, power))
        if known is None:
            sizes = [other for name, called, other in self.learnt if name == server and called == function]
            if not sizes:
                return None
            known = self.learnt[server, function, min(sizes, key=lambda other: (abs(other - power), other))]
        return known.operations_per_s

    def restore(self, measured: Iterable[Server], answered: Iterable[Answered], learnt: Iterable[Learnt]) -> None:
        """Reads records back, in any order."""
        for server in sorted(measured, key=lambda one: (one.name, one.at_us)):
            self.measured[server.name] = (*self.measured.get(server.name, ()), server)
        self.answered = tuple(sorted(answered, key=_when))[-ANSWERED:]
        self.learnt = {(known.server, known.function, known.power): known for known in sorted(learnt)}


def power_of(operations: int) -> int:
    """The power of two at or below: 1023 -> 9, 1024 -> 10; 0 for 0 and 1."""
    return max(operations.bit_length() - 1, 0)


def _when(answered: Answered) -> tuple[int, int]:
    return answered.end_us, answered.call_id
