"""Names of runs in one picture: no longer than it takes to tell them apart."""

from __future__ import annotations

from collections.abc import Sequence

from rmgr.sim.plots.parts.reading import Run


def labels_of(runs: Sequence[Run]) -> list[str]:
    """One a run, all different: the policy; with what differs beside it; at last the directory."""
    policies = [run.policy or run.name for run in runs]
    workloads = _unless_equal([run.workload for run in runs])
    details = [", ".join(sorted(set(run.details) - _everyones(runs))) for run in runs]
    tries = (
        policies,
        [_joined(policy, detail) for policy, detail in zip(policies, details, strict=True)],
        [_joined(policy, workload) for policy, workload in zip(policies, workloads, strict=True)],
        [_joined(*parts) for parts in zip(policies, workloads, details, strict=True)],
        [run.name for run in runs],
        [f"{run.directory.absolute().parent.name}/{run.name}" for run in runs],
    )
    different = next((names for names in tries if len(set(names)) == len(runs)), None)
    return different if different is not None else [str(run.directory) for run in runs]


def shared_facts(runs: Sequence[Run]) -> tuple[str, list[str]]:
    """(workload, facts) that hold for all of them: for the title of a picture of several runs."""
    workloads = list(dict.fromkeys(run.workload for run in runs))
    if len(runs) == 1:
        return runs[0].title, list(runs[0].facts)
    title = workloads[0] if len(workloads) == 1 else f"{len(workloads)} workloads"
    return title, [fact for fact in runs[0].facts if all(fact in run.facts for run in runs)]


def _unless_equal(names: list[str]) -> list[str]:
    return names if len(set(names)) > 1 else [""] * len(names)


def _everyones(runs: Sequence[Run]) -> set[str]:
    return set.intersection(*(set(run.details) for run in runs))


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
