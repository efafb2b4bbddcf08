"""One call as the simulation saw it: when it was issued, sent, transferred, computed, and what was predicted."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class CallRequest:
    """Times in seconds since the beginning, -inf before they are known. draw: of its transfer, mean 1, the same under every policy."""

    number: int
    client: str
    operations: int
    bytes: int
    function: str
    issued_s: float
    draw: float
    server: str = ""
    sent_s: float = -inf
    arrived_s: float = -inf  #: all bytes are transferred
    ended_s: float = -inf
    service_s: float = 0.0  #: computing alone
    alone_s: float = 0.0  #: all of it on an idle server and link
    predicted_s: float = 0.0  #: 0: nothing was predicted
    believed: float = 0.0  #: operations/s that the policy believed in, less the true ones, relative to these

    @property
    def is_answered(self) -> bool:
        return self.ended_s > -inf

    @property
    def transfer_s(self) -> float:
        return self.arrived_s - self.sent_s

    @property
    def computing_s(self) -> float:
        return self.ended_s - self.arrived_s

    @property
    def total_s(self) -> float:
        return self.ended_s - self.issued_s

    @property
    def missed_s(self) -> float:
        """Predicted time from sending on, less what it took."""
        return self.predicted_s - (self.ended_s - self.sent_s)
