"""Servers for calls (paper 004): gateways report them, the leader picks among them, people see them. Fields as in `calls.proto`."""

from __future__ import annotations

import msgspec

#: The partition of calls: it has servers and a policy, but no nodes and no queues.
CALLS = "calls"
#: Policy of that partition if none is set.
DEFAULT_CALL_POLICY = "loth+l"
#: Interval of gateways' reports if they do not tell it (us).
REFRESH_US = 10_000_000


# -- gateways report ----------------------------------------------------------------------------------------------------------


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load of a server at one moment. other: busy cores of other work, beyond those that are not slots. mean_load: since the previous
    answer.

    arrivals_per_s, service_s, service_cv: of its calls since its start.
    """

    running: int = 0
    waiting: int = 0
    other: float = 0.0
    mean_load: float = 0.0
    arrivals_per_s: float = 0.0
    service_s: float = 0.0
    service_cv: float = 0.0


class CallReport(msgspec.Struct, frozen=True, kw_only=True):
    """An answered call. function: `name@version`. took_us: from submission to answer."""

    function: str
    operations: int
    bytes: int = 0
    ran_us: int = 0
    alone_us: int = 0
    took_us: int = 0
    predicted_us: int = 0


class ServerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A server as one gateway knows it.

    functions: interfaces as canonical JSON. mops: million operations/s of one slot. measured_ago_us, link_ago_us: age of the load, or of
    the link's measurement, when the report was sent. bytes_per_s: 0 = not measured. state: open, leaving, away (the stream broke) or closed
    (this life is over). answered: since the previous report. heard_ago_us: since the gateway heard it. same: its functions were reported
    before, and are left out.
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
    same: bool = False


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """All servers whose streams a gateway holds, and those lost in the last hour. refresh_us: interval of its reports."""

    gateway: str
    site: str = ""
    servers: tuple[ServerReport, ...] = ()
    refresh_us: int = 0


class LifeHeard(msgspec.Struct, frozen=True, kw_only=True):
    """A life of a server as other gateways know it. over: none of its calls run any more."""

    name: str
    life: int
    heard_ago_us: int
    over: bool = False


class ReportAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway needs to pick while no leader answers, and what other gateways know of all servers.

    pipeline: JSON, as `PipelineSpec.document`. untold: lives whose functions were left out of the report but are unknown: the leader has
    forgotten these servers, or is new.
    """

    epoch: int
    policy: str
    pipeline: str
    lives: tuple[LifeHeard, ...] = ()
    untold: tuple[int, ...] = ()


# -- picks ----------------------------------------------------------------------------------------------------------------------


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A server that a call may go to, with what its gateway knows of the link now."""

    name: str
    life: int
    bytes_per_s: float = 0.0
    round_trip_s: float = 0.0


class PickRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call that needs a server. function: `name@version`. bytes: both ways. explain: return all terms, send nothing."""

    gateway: str
    function: str
    operations: int
    bytes: int
    site: str = ""
    user: str = ""
    servers: tuple[Candidate, ...] = ()
    explain: bool = False


class TermView(msgspec.Struct, frozen=True, kw_only=True):
    """One server in the formula: L and P as counted, T (0 = not measured), and the results. note: why it cannot have the call."""

    server: str
    load: float = 0.0
    mops: float = 0.0
    bytes_per_s: float = 0.0
    computing_s: float = 0.0
    transfer_s: float = 0.0
    note: str = ""


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """Where a call goes. server: "" = nowhere, because of `why`. unknown: candidates to report, before asking again."""

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


# -- what people see ------------------------------------------------------------------------------------------------------------


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """The network between a gateway and a server. age_s: of its measurement."""

    site: str
    gateway: str
    bytes_per_s: float
    round_trip_s: float
    age_s: float


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """A server. state: open, stale, away, odd or closed; why: of that state. bytes_per_s: of its best link, 0 = not measured.

    age_s: of the last report of its load. assigned: calls sent to it since.
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
    """All servers by name, and the policy that picks. degraded: a gateway picks by itself."""

    servers: tuple[ServerView, ...] = ()
    policy: str = ""
    degraded: bool = False
    epoch: int = 0
