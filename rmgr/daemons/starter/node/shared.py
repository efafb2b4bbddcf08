"""Parts that all nodes of a Starter share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.ranks import Peers
from rmgr.coord.protocol.ports import Coordinator
from rmgr.daemons.starter.checkpoint.seal import OPEN, Seals
from rmgr.daemons.starter.core.commits import Committer
from rmgr.daemons.starter.core.estimate import TaskTimes
from rmgr.daemons.starter.core.fetch import Fetcher
from rmgr.daemons.starter.core.home import Home
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.core.metrics import StarterMetrics
from rmgr.daemons.starter.core.records import RecordCache
from rmgr.daemons.starter.core.turns import Turns
from rmgr.daemons.starter.health.reach import Reach
from rmgr.daemons.starter.health.trust import Gate
from rmgr.daemons.starter.pull.caps import Caps
from rmgr.daemons.starter.staging.accounts import Accounts, AccountsPolicy
from rmgr.daemons.starter.staging.ahead import CAP_BYTES as VALUES_CAP_BYTES
from rmgr.daemons.starter.staging.charged import Charge
from rmgr.daemons.starter.staging.claims import OutputClaims
from rmgr.daemons.starter.staging.inputs import Inputs
from rmgr.daemons.starter.staging.rows import OutputRows
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.procedures.authentic import Deeds
from rmgr.runtime import machine
from rmgr.runtime.aside import Aside
from rmgr.runtime.gang_clock import ClockReader
from rmgr.runtime.logger import Log
from rmgr.runtime.mailbox import Timer


@dataclass(slots=True, kw_only=True)
class Shared:
    """Parts that all nodes of a Starter share."""

    coordinator: Coordinator
    io: StoreIO
    home: Home
    forget_lost: Callable[[], None]  #: looks at all that is kept in files, and forgets what is gone
    committer: Committer
    records: RecordCache
    fetcher: Fetcher
    inputs: Inputs
    times: TaskTimes
    metrics: StarterMetrics
    settings: Callable[[], ClusterSettings]
    post: Callable[[Callable[[], None]], None]
    wake: Callable[[], None]
    environ: dict[str, str]
    output_cap: int
    spool_cap: int
    python: str
    log: Log
    after: Callable[[float, Callable[[], None]], Timer]
    peers: Peers | None = None  #: how other Starters are asked
    credentials: Credentials | None = None  #: None in an open cluster
    gate: Gate | None = None  #: of a secured cluster
    seals: Seals = OPEN  #: of checkpoints
    deeds: Deeds | None = None  #: of a secured cluster: whose values are
    users: AccountsPolicy | None = None  #: work runs as its users; None: as the Starter
    processors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  #: that are a node's own, none: work is not bound
    separate: bool = False  #: users never share a worker
    checkpoint_max_bytes: int = 1 << 30  #: of one job
    directory: Path = Path()  #: the Starter's own
    file_cap: int = 0  #: bytes of a file that becomes a value, 0 = as many as any value
    values_cap: int = VALUES_CAP_BYTES  #: bytes of inputs that each node reads ahead, and of all outputs on their way, in memory
    aside: Aside = field(init=False)  #: what raised where nothing should: each place in the code is logged once
    bounds: Bounds = field(default_factory=Bounds)  #: what each user may have of this Starter
    turns: defaultdict[str, Turns] = field(default_factory=lambda: defaultdict(Turns))  #: what users had, by queue
    caps: Caps = field(default_factory=Caps)  #: of users
    rows: OutputRows = field(init=False)
    claims: OutputClaims = field(init=False)

    def __post_init__(self) -> None:
        self.aside = Aside(self.log, self.metrics.loop_errors.inc)
        self.claims = OutputClaims(self.io.store, self.coordinator, self.deeds)
        self.rows = OutputRows(self.io, self.deeds, self.charge_of, cap_bytes=self.values_cap)

    def charge_of(self, user: str) -> Charge:
        """For something that `user`'s work is about to write into the store."""
        return Charge(self.bounds, user)

    def open_clock(self, told: Callable[[], None]) -> ClockReader:
        """Reads the clock of another machine; `told` is called on a thread of its own."""
        return ClockReader(self.credentials, told)

    def accounts(self, node: str, directory: Path, log: Log) -> Accounts | None:
        """Whose rights work has on a node, None = the Starter's. directory: for copies of files."""
        if self.users is None:
            return None
        reach = Reach(python=self.python, directory=self.directory)
        clock = machine.monotonic
        return Accounts(self.users, self.io, node=node, wake=self.wake, directory=directory, clock=clock, log=log, reach=reach)
