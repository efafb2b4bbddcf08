"""One experiment as plain values: workload, machine, policy, load, seed. The same values give the same run, in any process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from rmgr.errors import UsageError
from rmgr.sched.job import Node
from rmgr.sched.pipeline import Configuration, configured
from rmgr.sched.policies.dqt import Dqt
from rmgr.sched.policy import Stage, sends_calls
from rmgr.sched.state.event_log import Recorder
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.execution import MINUTE_US, Grid, by_speed, drawn
from rmgr.sim.engine.machine import Machine
from rmgr.sim.engine.outcome import Result, Setting
from rmgr.sim.engine.validate import check
from rmgr.sim.models.catalogue import is_model, model_named, refuse_misspelt
from rmgr.sim.runs.output import ranges_text
from rmgr.sim.workload.events import Failures, LimitsChange, read_events
from rmgr.sim.workload.jobs import Workload, read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Request to `rmgr sim run`.

    Attributes:
        source: path of a trace, or name of a model. policy, params: as `configure` understands them.
        configure: (policy, params) -> pipeline and machine; the catalogue's policies, or with files and plug-ins (it does IO: the command
            line gives it). A function of a module: it goes to other processes by its name.
        nodes: None = as the trace's header says (a model: 128); cores: of a node.
        load: offered load to which arrivals are stretched; interarrival: factor on submit times; at most one of them, None = as they are.
        count: the first so many jobs of a trace, or as many of a model; None = all (a model: 10,000). seed: of everything that is drawn.
        tick_us: passes only at its multiples, 0 = at every event.
        events: path of a file of events (`read_events`), "" = none. mtbf_us, mttr_us: of each node, 0 = nodes never fail; both or none.
        requeue: a job that loses a node waits again, else it has failed. dependencies: fields 17 and 18 of a trace are followed.
        spells: every stretch of a job in a gang is kept, not only its stay.
        sites: a grid of one-core nodes of drawn speeds in so many sites (`Grid`), 0 = none; delay_us: for each site of a job beyond the
            first; penalty_us: of a migration, for each processor of the job.
    """

    source: str
    policy: str
    params: Mapping[str, str] = field(default_factory=dict)
    nodes: int | None = None
    cores: int = 1
    load: Fraction | None = None
    interarrival: Fraction | None = None
    count: int | None = None
    seed: int = 0
    tick_us: int = 0
    events: str = ""
    mtbf_us: int = 0
    mttr_us: int = 0
    requeue: bool = True
    dependencies: bool = False
    spells: bool = False
    sites: int = 0
    delay_us: int = 10 * MINUTE_US
    penalty_us: int = MINUTE_US
    configure: Callable[[str, Mapping[str, str]], Configuration] = configured

    def workload(self) -> Workload:
        """The jobs as they will be submitted. Raises: UsageError (see `read_trace`), or when load and interarrival are both given."""
        if self.load is not None and self.interarrival is not None:
            raise UsageError("--load and --interarrival both stretch the arrivals", hint="give one of them")
        machine = self._machine(self.configure(self.policy, self.params))
        processors = machine.processors if machine is not None else None
        if is_model(self.source):
            found = model_named(self.source, jobs=self.count, processors=processors, seed=self.seed)
        else:
            refuse_misspelt(self.source)
            found = read_trace(self.source, processors=processors, dependencies=self.dependencies)
            found = found.first(self.count) if self.count is not None else found
        if self.interarrival is not None:
            found = found.stretched(self.interarrival)
        return found.at_load(self.load) if self.load is not None else found

    def setting(self, workload: Workload) -> Setting:
        """Machine, policy and events for it.

        Raises: ConfigError for an unknown policy or parameter; UsageError for an impossible machine, or events that cannot be read.
        """
        found = self.configure(self.policy, self.params)
        self._machine(found)
        nodes: int | tuple[Node, ...] | None = found.nodes or self.nodes
        if nodes is None:
            nodes, rest = divmod(workload.processors, self.cores)
            if rest:
                raise UsageError(f"{workload.processors} processors are no whole number of nodes with {self.cores} cores", hint="--nodes N")
        grid = self._grid(nodes)
        limits = (LimitsChange(0, partition, limits) for partition, limits in found.limits.items())
        return Setting(
            nodes=nodes if grid is None else grid.nodes(),
            cores=self.cores,
            pipeline=found.stages,
            policy=self.policy,
            seed=self.seed,
            tick_us=self.tick_us,
            partitions=_homes(found, workload),
            execution=by_speed(found.nodes) if grid is None else grid,
            events=(*limits, *(read_events(self.events) if self.events else ())),
            failures=self._failures(),
            requeue=self.requeue,
            spells=self.spells,
            usage_half_life_us=found.usage_half_life_us,
        )

    def _grid(self, nodes: int | tuple[Node, ...]) -> Grid | None:
        if not self.sites:
            return None
        if self.cores != 1 or not isinstance(nodes, int):
            raise UsageError("a grid has nodes of one core and draws their speeds", hint="--sites goes with --nodes, without --cores")
        return drawn(self.seed, nodes=nodes, sites=self.sites, delay_us=self.delay_us, penalty_us=self.penalty_us)

    def _failures(self) -> Failures | None:
        if not self.mtbf_us and not self.mttr_us:
            return None
        if self.mtbf_us <= 0 or self.mttr_us <= 0:
            raise UsageError("failures need --mtbf and --mttr, both above 0 s", hint="--mtbf 30d --mttr 4h, of each node")
        return Failures(self.mtbf_us, self.mttr_us)

    def node_count(self, processors: int) -> int:
        """Nodes of a machine of so many processors: of one core, of `cores`, or as the policy file describes them."""
        return len(self.configure(self.policy, self.params).nodes) or processors // self.cores

    def _machine(self, found: Configuration) -> Machine | None:
        """The machine that was asked for, or that the policy file describes; None = as the workload says. Raises: UsageError for both."""
        if not found.nodes:
            return Machine(self.nodes, self.cores) if self.nodes is not None else None
        if self.nodes is not None or self.cores != 1:
            raise UsageError(f"{self.policy} describes the machine: --nodes and --cores say another one", hint="leave one of them out")
        return Machine(found.nodes)

    def check(self) -> None:
        """Raises what `setting` would for names, parameters and events, before a long trace is read."""
        self._check_partitions()
        self._failures()
        if self.events:
            read_events(self.events)

    def _check_partitions(self) -> None:
        """A file without a machine may name partitions of a cluster's; here there is one. Policies for calls would place no job."""
        found = self.configure(self.policy, self.params)
        if any(sends_calls(stage.policy) for stage in found.stages):
            raise UsageError(
                f"{self.policy} chooses servers for calls, it places no jobs", hint="rmgr sim calls ninf_table4 --policy NAME|FILE.py"
            )
        for stage in () if found.nodes else found.stages:
            other = next((name for name in stage.partitions if name != "default"), None)
            if other is not None:
                raise UsageError(
                    f"{self.policy}: a stage is for partition {other!r}, and the file describes no machine with partitions",
                    hint=f'[[partition]] with name = "{other}" and nodes = N; or leave `partitions` out',
                )

    def pipeline(self) -> tuple[Stage, ...]:
        """The stages of policies. Raises: ConfigError for an unknown policy or parameter, or a file that is none."""
        return self.configure(self.policy, self.params).stages

    def slots(self) -> dict[str, object]:
        """Seconds of a slot and width of the tree where jobs share cores in time, for manifests; empty where none do.

        The trees stand there one by one, with the cores of each from the left, where the file describes several partitions.
        """
        found = self.configure(self.policy, self.params)
        gangs: dict[str, Dqt] = {}
        for stage in found.stages:
            if isinstance(stage.policy, Dqt):
                gangs = dict.fromkeys(stage.partitions or found.partitions or ("default",), stage.policy) | gangs
        if not gangs:
            return {}
        policies = list(gangs.values())
        slots: dict[str, object] = {"quantum_seconds": min(policy.quantum_us for policy in policies) / 1e6, "width": policies[0].width}
        if len(found.partitions) > 1:
            cores = _cores_of(found.nodes)
            trees = ((name, policy.width) for name, policy in gangs.items() if name in cores)
            slots["trees"] = [{"partition": name, "width": width, "cores": ranges_text(cores[name])} for name, width in trees]
        return slots

    def empty_queues(self, workload: Workload) -> tuple[str, ...]:
        """Queues that the file sends to a partition and that no job of the workload is in. Cost: O(jobs)."""
        homes = self.configure(self.policy, self.params).homes
        there = {job.queue for job in workload.jobs} if homes else set()
        return tuple(sorted(queue for queue in homes if queue and queue not in there))

    def described(self) -> dict[str, Any]:
        """Everything that decides the result, for manifests and JSON."""
        return {
            "source": self.source,
            "policy": self.policy,
            "params": dict(sorted(self.params.items())),
            "nodes": self.nodes,
            "cores": self.cores,
            "load": _plain(self.load),
            "interarrival": _plain(self.interarrival),
            "count": self.count,
            "seed": self.seed,
            "tick_seconds": self.tick_us / 1e6,
            "events": self.events or None,
            "mtbf_seconds": self.mtbf_us / 1e6 or None,
            "mttr_seconds": self.mttr_us / 1e6 or None,
            "requeue": self.requeue,
            "dependencies": self.dependencies,
            "sites": self.sites or None,
            "delay_seconds": self.delay_us / 1e6 if self.sites else None,
            "penalty_seconds": self.penalty_us / 1e6 if self.sites else None,
        }


def carry_out(
    experiment: Experiment,
    workload: Workload,
    *,
    validate: bool = False,
    on_progress: Callable[[int], None] | None = None,
    log: Callable[[str], object] | None = None,
) -> Result:
    """Runs it, checks the schedule when asked to, and writes a log of every fact and pass when given where.

    Raises: as `simulate` and `validate.check`.
    """
    setting = experiment.setting(workload)
    recorder = None
    if log is not None:
        recorder = Recorder(log, policy=experiment.policy, parameters=experiment.params, about=experiment.described())
    result = simulate(workload, setting, on_progress=on_progress, recorder=recorder)
    if validate:
        check(result, workload, setting)
    return result


def _cores_of(nodes: Iterable[Node]) -> dict[str, list[tuple[int, int]]]:
    """The cores of each partition by their numbers in results, as ranges."""
    found: dict[str, list[tuple[int, int]]] = {}
    base = 0
    for node in sorted(nodes, key=lambda node: node.id):
        ranges = found.setdefault(node.partition, [])
        beside = ranges.pop() if ranges and ranges[-1][1] == base - 1 else (base, base)
        ranges.append((beside[0], base + node.cores - 1))
        base += node.cores
    return found


def _homes(found: Configuration, workload: Workload) -> dict[str, str]:
    """Queue -> partition of its jobs, for every queue of the workload."""
    if not found.homes:
        return {}
    other = found.homes.get("", "default")
    return {queue: found.homes.get(queue, other) for queue in sorted({job.queue for job in workload.jobs})}


def _plain(value: Fraction | None) -> float | None:
    return None if value is None else float(value)
