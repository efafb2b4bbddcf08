"""Application scheduling: when a program that has many calls to make sends the next one (`call_many`).

A call sent too early takes capacity from the program's own calls in flight; one sent too late leaves a server idle. So the next call goes
as soon as some server is expected to answer it sooner than it would be answered if it first waited for a call in flight.
Source: paper 004, 2.1 (network tasks serve the application's completion time); the rule is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

#: Predictions that differ by less are the same: they are rounded on their way.
EARLIER_S = 1e-3


class InFlight(NamedTuple):
    """A call of this program that was sent: where to, and when its answer is expected (s from now, at least 0)."""

    server: str
    left_s: float


def sends_now(in_flight: Iterable[InFlight], now_s: Mapping[str, float], alone_s: Mapping[str, float]) -> bool:
    """Whether the next call should be sent now.

    Args:
        now_s: server -> seconds until the answer if it is sent there now, with all that is in flight.
        alone_s: server -> the same if one call of this program fewer were there.
    Returns: True where the best of `now_s` is earlier than the best of waiting for a call in flight; also with nothing in flight.
    Cost: O(calls in flight + servers).
    """
    if not now_s:
        return False
    waits = [call.left_s + alone_s.get(call.server, now_s.get(call.server, float("inf"))) for call in in_flight]
    return not waits or min(now_s.values()) < min(waits) - EARLIER_S
