"""One experiment as plain values: workload, machine, policy, load, seed. The same values give the same run, in any process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from rmgr.errors import UsageError
from rmgr.sched.job import Node
from rmgr.sched.pipeline import Configuration, configured
from rmgr.sched.policy import Stage
from rmgr.sim.driver import simulate
from rmgr.sim.events import LimitsChange
from rmgr.sim.machine import Machine
from rmgr.sim.models.catalogue import is_model, model_named
from rmgr.sim.outcome import Result
from rmgr.sim.setting import Setting
from rmgr.sim.validate import check
from rmgr.sim.workload import Workload, read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What `rmgr sim run` was asked for.

    Attributes:
        source: path of a trace, or name of a model. policy, params: as `configure` understands them.
        configure: (policy, params) -> pipeline and machine; the catalogue's policies, or with files and plug-ins (it does IO: the command
            line gives it). A function of a module: it goes to other processes by its name.
        nodes: None = as the trace's header says (a model: 128); cores: of a node.
        load: offered load to which arrivals are stretched; interarrival: factor on submit times; at most one of them, None = as they are.
        count: the first so many jobs of a trace, or as many of a model; None = all (a model: 10,000). seed: of everything that is drawn.
        tick_us: passes only at its multiples, 0 = at every event.
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
            found = read_trace(self.source, processors=processors)
            found = found.first(self.count) if self.count is not None else found
        if self.interarrival is not None:
            found = found.stretched(self.interarrival)
        return found.at_load(self.load) if self.load is not None else found

    def setting(self, workload: Workload) -> Setting:
        """Machine and policy for it. Raises: ConfigError for an unknown policy or parameter; UsageError for an impossible machine."""
        found = self.configure(self.policy, self.params)
        self._machine(found)
        nodes: int | tuple[Node, ...] | None = found.nodes or self.nodes
        if nodes is None:
            nodes, rest = divmod(workload.processors, self.cores)
            if rest:
                raise UsageError(f"{workload.processors} processors are no whole number of nodes with {self.cores} cores", hint="--nodes N")
        return Setting(
            nodes=nodes,
            cores=self.cores,
            pipeline=found.stages,
            policy=self.policy,
            seed=self.seed,
            tick_us=self.tick_us,
            partitions=_homes(found, workload),
            events=tuple(LimitsChange(0, partition, limits) for partition, limits in found.limits.items()),
            usage_half_life_us=found.usage_half_life_us,
        )

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

    def pipeline(self) -> tuple[Stage, ...]:
        """The stages of policies. Raises: ConfigError for an unknown policy or parameter, or a file that is none."""
        return self.configure(self.policy, self.params).stages

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
        }


def carry_out(
    experiment: Experiment, workload: Workload, *, validate: bool = False, on_progress: Callable[[int], None] | None = None
) -> Result:
    """Runs it, and checks the schedule when asked to. Raises: as `simulate` and `validate.check`."""
    result = simulate(workload, experiment.setting(workload), on_progress=on_progress)
    if validate:
        check(result, workload)
    return result


def _homes(found: Configuration, workload: Workload) -> dict[str, str]:
    """Queue -> partition of its jobs, for every queue of the workload."""
    if not found.homes:
        return {}
    other = found.homes.get("", "default")
    return {queue: found.homes.get(queue, other) for queue in sorted({job.queue for job in workload.jobs})}


def _plain(value: Fraction | None) -> float | None:
    return None if value is None else float(value)
