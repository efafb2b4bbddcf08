"""Runs replications in several processes, summarises them, and writes calls.csv (a row for each call), summary.json and manifest.json.

A group is one policy in one case, with all seeds. Summaries are means with 90 % confidence intervals for each policy and case, and by
client, server and prediction.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any, NamedTuple, TypeAlias

from rmgr.errors import RmgrError, UsageError
from rmgr.sched.catalogue import call_policy_named
from rmgr.sched.policy import Policy
from rmgr.sim.calls.scenario import Scenario
from rmgr.sim.calls.world import CallRequest, Replication, replicate
from rmgr.sim.runs.output import whole_directory, write_json
from rmgr.sim.runs.parallel import measured

#: (name, parameters) -> the policy for calls.
MakePolicy: TypeAlias = Callable[[str, Mapping[str, object]], Policy]
#: Number of seeds that one process takes at a time.
CHUNK = 25
CALLS, SUMMARY = "calls.csv", "summary.json"
COLUMNS = ("policy", "case", "seed", "call", "client", "server", "issued", "sent", "arrived", "ended", "predicted")


def replications(
    scenario: Scenario,
    policies: Iterable[tuple[str, tuple[tuple[str, str], ...]]],
    seeds: Sequence[int],
    *,
    make: MakePolicy = call_policy_named,
    processes: int = 1,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Mapping[tuple[str, str], tuple[Replication, ...]]:
    """Returns (policy, case) -> its replications, in order of seeds.

    Args:
        policies: (name, parameters), each name once. make: as in `Group`. processes: how many run at a time.
    Raises: RmgrError if a policy fails.
    """
    groups = {(name, case.name): Group(scenario, case.name, name, params, make) for name, params in policies for case in scenario.cases}
    found = played(groups.values(), seeds, processes=processes, on_progress=on_progress)
    return {key: found[group] for key, group in groups.items()}


@dataclass(frozen=True, slots=True)
class Group:
    """One policy, by name and parameters, in one case. make: makes the policy; a function of a module, so that it can be pickled."""

    scenario: Scenario
    case: str
    policy: str
    params: tuple[tuple[str, str], ...]
    make: MakePolicy = call_policy_named

    def __str__(self) -> str:
        return f"{self.policy} in case {self.case} of {self.scenario.name}"


def played(
    groups: Iterable[Group],
    seeds: Sequence[int],
    *,
    processes: int = 1,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[Group, tuple[Replication, ...]]:
    """Returns the replications of each group, in order of seeds. Raises: RmgrError if a policy fails."""
    chunks = [tuple(seeds[at : at + CHUNK]) for at in range(0, len(seeds), CHUNK)]
    wanted = {group: [_Chunk(group, some) for some in chunks] for group in groups}
    found = measured(chain.from_iterable(wanted.values()), _replicated, processes=processes, on_progress=on_progress)
    return {group: tuple(one for chunk in its for one in found[chunk]) for group, its in wanted.items()}


class _Chunk(NamedTuple):
    """The unit of work of one process."""

    group: Group
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        return str(self.group)


def _replicated(chunk: _Chunk) -> tuple[Replication, ...]:
    group, case = chunk.group, chunk.group.scenario.case(chunk.group.case)
    try:
        return tuple(replicate(group.scenario, case, group.make(group.policy, dict(group.params)), seed=seed) for seed in chunk.seeds)
    except RuntimeError as error:
        raise RmgrError(f"{group}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Means over the replications of one policy in one case; times in seconds.

    half_width_s: half the 90 % confidence interval of total_s. busy: utilisation by server. chosen: share of the calls by server.
    throughput: bytes/s of transfers by server. response_s: total by client. requests_per_s: of all clients; 0 if no time passed.
    makespan_s: time until the last answer. error: sum of |predicted - actual| over the sum of actual times; None without predictions.
    spread_s: standard deviation of total_s over the replications.
    belief: mean relative error of the speed (operations/s) that the policy assumed.
    """

    computing_s: float
    transfer_s: float
    total_s: float
    half_width_s: float
    spread_s: float
    busy: Mapping[str, float]
    chosen: Mapping[str, float]
    throughput: Mapping[str, float]
    response_s: Mapping[str, float]
    requests_per_s: float
    makespan_s: float
    error: float | None
    belief: float


def summed(replications: Sequence[Replication]) -> Summary:
    """Summarises replications. Raises: ValueError if there are none."""
    if not replications:
        raise ValueError("there is no replication to sum up")
    totals = [_mean(one.requests, lambda request: request.total_s) for one in replications]
    servers = [name for name, _ in replications[0].busy]
    requests = [request for one in replications for request in one.requests]
    by_server = {name: [request for request in requests if request.server == name] for name in servers}
    clients = sorted({request.client for request in requests}, key=lambda name: (len(name), name))
    predicted = [request for request in requests if request.predicted_s]
    rates = [len(one.requests) / one.duration_s for one in replications if one.duration_s]
    took = sum(request.ended_s - request.sent_s for request in predicted)
    return Summary(
        computing_s=fmean(_mean(one.requests, lambda request: request.computing_s) for one in replications),
        transfer_s=fmean(_mean(one.requests, lambda request: request.transfer_s) for one in replications),
        total_s=fmean(totals),
        half_width_s=half_width(totals),
        spread_s=stdev(totals) if len(totals) > 1 else 0.0,
        busy={name: fmean(dict(one.busy)[name] for one in replications) for name in servers},
        chosen={name: len(by_server[name]) / len(requests) for name in servers},
        throughput={name: _rate(by_server[name]) for name in servers},
        response_s={name: _mean([r for r in requests if r.client == name], lambda request: request.total_s) for name in clients},
        requests_per_s=fmean(rates) if rates else 0.0,
        makespan_s=fmean(one.duration_s for one in replications),
        error=sum(abs(request.missed_s) for request in predicted) / took if took else None,
        belief=_mean(requests, lambda request: abs(request.believed)),
    )


def half_width(values: Sequence[float]) -> float:
    """Returns half the 90 % confidence interval of the mean, by Student's t; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    return student_t(0.95, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def student_t(probability: float, degrees: int) -> float:
    """Returns a quantile of Student's t distribution, accurate to 0.5 % from 4 degrees of freedom on.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5 (expansion about the normal quantile).
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / degrees**power for power, term in enumerate(terms, 1)))


def _mean(requests: Iterable[CallRequest], measure: Callable[[CallRequest], float]) -> float:
    return fmean(map(measure, requests))


def _rate(requests: Sequence[CallRequest]) -> float:
    seconds = sum(request.transfer_s for request in requests)
    return sum(request.bytes for request in requests) / seconds if seconds else 0.0


@dataclass(frozen=True, slots=True)
class CallRow:
    """A row of calls.csv; times in seconds. From sent to arrived it is transferred, from arrived to ended it computes."""

    policy: str
    case: str
    seed: int
    call: int
    client: str
    server: str
    issued_s: float
    sent_s: float
    arrived_s: float
    ended_s: float


def write_calls(
    out: Path,
    found: Mapping[tuple[str, str], Sequence[Replication]],
    summaries: Mapping[tuple[str, str], Summary],
    seeds: Sequence[int],
    manifest: Mapping[str, Any],
) -> None:
    """Writes all files or none. Raises: as `whole_directory`."""
    with whole_directory(out) as partial:
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(COLUMNS)
        for (policy, case), replications in found.items():
            for seed, one in zip(seeds, replications, strict=True):
                lines.writerows((policy, case, seed, *_times(request)) for request in one.requests)
        (partial / CALLS).write_text(text.getvalue(), encoding="utf-8")
        write_json(partial / SUMMARY, calls_document(summaries))
        write_json(partial / "manifest.json", manifest)


def calls_document(summaries: Mapping[tuple[str, str], Summary]) -> dict[str, Any]:
    """Returns the summaries as a JSON document."""
    rows = [{"policy": policy, "case": case, **asdict(summary)} for (policy, case), summary in summaries.items()]
    return {"schema": "rmgr/1", "calls": rows}


def read_calls(directory: Path) -> tuple[CallRow, ...]:
    """Reads the calls of a directory, in the order of the file. Raises: UsageError if the file is damaged."""
    path = directory / CALLS
    try:
        return tuple(_rows(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} cannot be used: {error}", hint="a directory that rmgr sim calls --out wrote is meant") from error


def _rows(text: str) -> Iterator[CallRow]:
    for line in csv.DictReader(io.StringIO(text)):
        times = (float(line[name]) for name in ("issued", "sent", "arrived", "ended"))
        yield CallRow(line["policy"], line["case"], int(line["seed"]), int(line["call"]), line["client"], line["server"], *times)


def _times(request: CallRequest) -> tuple[object, ...]:
    seconds = (request.issued_s, request.sent_s, request.arrived_s, request.ended_s, request.predicted_s)
    return (request.number, request.client, request.server, *(f"{value:.6f}" for value in seconds))
