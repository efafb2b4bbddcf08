"""Servers for calls (paper 004) as gateways report them, the leader picks among them, and people see them. Fields as in `calls.proto`."""

from __future__ import annotations

import msgspec

#: The partition of calls: it has servers and a policy, no nodes and no queues.
CALLS = "calls"
#: Who picks there where nobody was set.
DEFAULT_CALL_POLICY = "loth+l"
#: How often gateways report where they do not say it.
REFRESH_US = 10_000_000


# -- gateways report ----------------------------------------------------------------------------------------------------------


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load of a server at one moment. other: other work's busy cores beyond those that are no slots. mean_load: since the answer before.

    arrivals_per_s, service_s, service_cv: of its calls since it was started.
    """

    running: int = 0
    waiting: int = 0
    other: float = 0.0
    mean_load: float = 0.0
    arrivals_per_s: float = 0.0
    service_s: float = 0.0
    service_cv: float = 0.0


class CallReport(msgspec.Struct, frozen=True, kw_only=True):
    """An answered call. function: `name@version`. took_us: from its submission to its answer."""

    function: str
    operations: int
    bytes: int = 0
    ran_us: int = 0
    alone_us: int = 0
    took_us: int = 0
    predicted_us: int = 0


class ServerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A server as one gateway knows it.

    functions: interfaces as canonical JSON. mops: million operations/s of one slot. measured_ago_us, link_ago_us: how long before the
    report left the load, or the link, was measured. bytes_per_s: 0 = not measured. state: open, leaving, away (the stream broke) or
    closed (this life is over). answered: since the report before. heard_ago_us: how long ago the gateway heard it.
    """

    name: str
    life: int
    site: str = ""
    slots: int = 1
    mops: float = 0.0
    mops_declared: bool = False
    functions: tuple[bytes, ...] = ()
    load: ServerLoad | None = None
    measured_ago_us: int = 0
    bytes_per_s: float = 0.0
    round_trip_s: float = 0.0
    link_ago_us: int = 0
    state: str = "open"
    answered: tuple[CallReport, ...] = ()
    heard_ago_us: int = 0


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """All servers whose streams a gateway holds, and those that it lost in the last hour. refresh_us: how often it reports."""

    gateway: str
    site: str = ""
    servers: tuple[ServerReport, ...] = ()
    refresh_us: int = 0


class LifeHeard(msgspec.Struct, frozen=True, kw_only=True):
    """A life of a server as other gateways know it. over: nothing of it runs any more."""

    name: str
    life: int
    heard_ago_us: int
    over: bool = False


class ReportAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway picks by where no leader answers, and what others know of all servers.

    pipeline: JSON, as `PipelineSpec.document`.
    """

    epoch: int
    policy: str
    pipeline: str
    lives: tuple[LifeHeard, ...] = ()


# -- picks ----------------------------------------------------------------------------------------------------------------------


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A server that a call can go to, with what its gateway knows of the link now."""

    name: str
    life: int
    bytes_per_s: float = 0.0
    round_trip_s: float = 0.0


class PickRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call that wants a server. function: `name@version`. bytes: both ways. explain: nothing is sent, all terms are told."""

    gateway: str
    function: str
    operations: int
    bytes: int
    site: str = ""
    user: str = ""
    servers: tuple[Candidate, ...] = ()
    explain: bool = False


class TermView(msgspec.Struct, frozen=True, kw_only=True):
    """One server in the formula: L and P as they count, T (0 = not measured), and what comes of them. note: why it cannot have the call."""

    server: str
    load: float = 0.0
    mops: float = 0.0
    bytes_per_s: float = 0.0
    computing_s: float = 0.0
    transfer_s: float = 0.0
    note: str = ""


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """Where a call goes. server: "" = nowhere, because of `why`. unknown: candidates to be reported; then it is asked again."""

    server: str = ""
    life: int = 0
    epoch: int = 0
    policy: str = ""
    why: str = ""
    computing_s: float = 0.0
    transfer_s: float = 0.0
    unknown: tuple[str, ...] = ()
    terms: tuple[TermView, ...] = ()
    degraded: bool = False
    took_us: int = 0


# -- what is shown --------------------------------------------------------------------------------------------------------------


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """The network between a gateway and a server. age_s: of its measurement."""

    site: str
    gateway: str
    bytes_per_s: float
    round_trip_s: float
    age_s: float


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """A server. state: open, stale, away, odd or closed; why: of the state. bytes_per_s: of its best link, 0 = not measured.

    age_s: of the last report of its load. assigned: calls sent there since.
    """

    name: str
    state: str
    site: str = ""
    slots: int = 1
    running: int = 0
    waiting: int = 0
    other: float = 0.0
    mops: float = 0.0
    bytes_per_s: float = 0.0
    age_s: float = 0.0
    assigned: int = 0
    life: int = 0
    links: tuple[LinkView, ...] = ()
    functions: tuple[str, ...] = ()
    why: str = ""


class ServersView(msgspec.Struct, frozen=True, kw_only=True):
    """All servers by name, and who picks. degraded: a gateway picks by itself."""

    servers: tuple[ServerView, ...] = ()
    policy: str = ""
    degraded: bool = False
    epoch: int = 0
