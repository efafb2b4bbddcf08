"""`rmgr sim replay`: a recorded log again, checked decision by decision, or under another policy beside what was recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.display.render import emit
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.sim import versions
from rmgr.cli.words.params import PARAMETER
from rmgr.errors import UsageError
from rmgr.model.base.units import counted

if TYPE_CHECKING:
    from rmgr.sim.replay import History

#: Measures of the comparison, with their unit and digits.
_COMPARED = {
    "mean_waiting_time": ("mean wait", "s", 2),
    "median_waiting_time": ("median wait", "s", 0),
    "max_waiting_time": ("max wait", "s", 0),
    "mean_turnaround_time": ("mean turnaround", "s", 2),
    "mean_bounded_slowdown": ("mean bounded slowdown", "", 3),
    "utilisation": ("utilisation", "", 5),
    "makespan": ("makespan", "s", 0),
    "jobs_waiting_zero": ("jobs that do not wait", "", 0),
    "jobs_rejected": ("jobs rejected", "", 0),
    "jobs_failed": ("jobs failed", "", 0),
    "migrations": ("migrations", "", 0),
    "lost_to_nodes": ("runs lost with nodes", "", 0),
}

#: Letters of a policy's name above its column; of a longer one, a path, the end is shown.
_MOST_HEAD = 26


@command(
    "replay",
    examples="""\
    rmgr sim run trace.swf --policy easy --record easy.log.gz
    rmgr sim replay easy.log.gz                       every pass again: the decisions must be the recorded ones
    rmgr sim replay easy.log.gz --policy conservative   the same jobs, nodes and failures under another policy
    rmgr sim replay easy.log.gz --policy sjf --out out/sjf --validate""",
    exits="0 done, 1 a decision is not the recorded one, or the results could not be written, 2 usage, or a log that cannot be used",
)
@click.argument("log", type=click.Path(path_type=Path), metavar="LOG")
@click.option("--policy", metavar="NAME|FILE", help="default: the policy that was recorded, whose decisions are then checked")
@click.option("--param", "params", type=PARAMETER, multiple=True, metavar="NAME=VALUE", help="of the policy; repeatable")
@click.option("--partial", is_flag=True, help="a log that was cut off, or is still being written: what there is of it")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="the run under --policy as sim run writes it; must not exist yet"
)
@click.option("--validate", is_flag=True, help="check the schedule under --policy")
def replay(
    session: Session, log: Path, policy: str | None, params: tuple[tuple[str, str], ...], partial: bool, out: Path | None, validate: bool
) -> None:
    """Replays a log of facts and decisions that `rmgr sim run --record` (or a leader) wrote.

    Under the recorded policy every pass is run again on the recorded facts and must decide the same. Under another one the recorded jobs
    run as long as they did, on the recorded nodes with their failures, and the measures are printed beside the recorded ones.
    """
    from rmgr.adapters import policy_files
    from rmgr.sched.catalogue import CALL_POLICIES
    from rmgr.sim.replay import verify
    from rmgr.sim.runs.output import read_log, refuse_existing

    if out is not None:
        refuse_existing(out)
    with closing(read_log(log, whole=not partial)) as entries:
        opening = _opening(next(entries, None), log)
    own = policy in {None, opening.policy} and (not params or dict(params) == dict(opening.parameters))
    if own and (out is not None or validate):
        raise UsageError("--out and --validate are for a run under another policy", hint="--policy NAME; the log itself is checked anyway")
    chosen = policy or opening.policy
    if lost := opening.about.get("lost"):
        session.note(f"{counted(lost, 'request')} of gateways before this log are in none: the data store was away or slow")
    if opening.policy in CALL_POLICIES or "scenario" in opening.about:
        parameters = dict(opening.parameters) if own else dict(params)
        _replay_calls(session, log, chosen, parameters, own=own, whole=not partial, refused=out is not None or validate)
        return
    if own and opening.pipelines:
        configuration = policy_files.recorded(opening.pipelines)
    else:
        configuration = policy_files.load(chosen, dict(opening.parameters) if own else dict(params))
    with closing(read_log(log, whole=not partial)) as entries:
        history = verify(entries, configuration.stages if own else None)
    if own:
        _tell_same(session, log, history)
        return
    _compare(session, log, history, chosen, dict(params), configuration, out=out, validate=validate)


def _opening(entry: object, log: Path) -> Any:
    from rmgr.sched.state.event_log import Opening

    if not isinstance(entry, Opening):
        raise UsageError(f"{log}: the log is empty", hint="rmgr sim run --record and rmgr admin export-events write such logs")
    return entry


def _replay_calls(session: Session, log: Path, policy: str, params: dict[str, str], *, own: bool, whole: bool, refused: bool) -> None:
    """A log of calls: every pick again, or those of another policy beside the recorded ones."""
    from rmgr.adapters import policy_files
    from rmgr.sched.policy import Stage
    from rmgr.sim.replay import picks, verify
    from rmgr.sim.runs.output import read_log

    pipeline = (Stage(policy_files.for_calls(policy, params)),)
    if refused:
        raise UsageError("--out and --validate are for logs of jobs", hint=f"rmgr sim replay {log} --policy {policy}")
    with closing(read_log(log, whole=whole)) as entries:
        if own:
            _tell_same(session, log, verify(entries, pipeline))
            return
        found = picks(entries, pipeline)
    sides = {"recorded": (found.policy, found.recorded), "replayed": (policy, found.replayed)}
    told = {
        side: {"policy": name, "calls": found.shares(sends), "predicted_s": round(found.predicted_s(sends), 6)}
        for side, (name, sends) in sides.items()
    }
    if session.json:
        emit({"log": str(log), **told, "same": found.same, "answered_s": round(found.answered_s, 6)})
        return
    sys.stdout.write(f"{log.name}: {counted(len(found.recorded), 'call')}, {found.same:,} go to the same server under {policy}\n")
    for side, (name, sends) in sides.items():
        shares = ", ".join(f"{server} {count}" for server, count in found.shares(sends).items())
        sys.stdout.write(f"  {side:10}{name:10} {shares}; predicted {found.predicted_s(sends):.3f} s in the mean\n")
    sys.stdout.write(f"  answers as recorded took {found.answered_s:.3f} s in the mean; those of other picks are in no log\n")


def _tell_same(session: Session, log: Path, history: History) -> None:
    if session.json:
        found = {"facts": history.told, "passes": history.passes, "decisions": history.decided, "identical": True}
        emit({"log": str(log), "policy": history.opening.policy, "replay": found})
        return
    sys.stdout.write(
        f"{log}: {counted(history.passes, 'pass')} of {history.opening.policy} over {history.told:,} facts; "
        f"all {history.decided:,} decisions are the recorded ones\n"
    )


def _compare(
    session: Session,
    log: Path,
    history: History,
    policy: str,
    params: dict[str, str],
    configuration: Any,
    *,
    out: Path | None,
    validate: bool,
) -> None:
    from rmgr.client.progress import Counts, ProgressDisplay
    from rmgr.sim.engine.driver import simulate
    from rmgr.sim.engine.validate import check
    from rmgr.sim.replay import recorded, under
    from rmgr.sim.runs.output import reproducible, summary, write_run

    world = recorded(history, name=log.name)
    setting = under(world, configuration.stages, policy, configuration.usage_half_life_us)
    total = len(world.workload.jobs)
    with ProgressDisplay(f"{log.name} {policy}", enabled=not session.json) as display:
        result = simulate(world.workload, setting, on_progress=lambda ended: display.update(Counts(total=total, final=ended)))
    if validate:
        check(result, world.workload, setting)
    if out is not None:
        write_run(out, result, workload_name=world.workload.name, manifest=_manifest(log, history, policy, params, configuration))
    if world.left_out:
        session.note(f"left out: {counted(world.left_out, 'job')} whose end is not in the log")
    before, after = summary(world.result), summary(result)
    if session.json:
        old, new = (reproducible(found) for found in (before, after))
        emit(
            {
                "log": str(log),
                "recorded": {"policy": history.opening.policy, "summary": old},
                "replayed": {"policy": policy, "summary": new},
            }
        )
        return
    sys.stdout.writelines(f"{line}\n" for line in _table(log, total, history.opening.policy, policy, before, after))
    if out is not None:
        sys.stdout.write(f"  written       {out}/jobs.csv, {out}/schedule.json, {out}/manifest.json\n")


def _manifest(log: Path, history: History, policy: str, params: dict[str, str], configuration: Any) -> dict[str, Any]:
    """What decides the files, as of `rmgr sim run`."""
    from rmgr.sim.runs.experiment import digest_of

    recorded = {"policy": history.opening.policy, "params": dict(sorted(history.opening.parameters.items()))}
    replayed = {"policy": policy, "params": dict(sorted(params.items())), "seed": history.opening.seed}
    return {
        "schema": "rmgr/1",
        "versions": versions(),
        "inputs": {source: digest_of(source) for source in sorted({str(log), *configuration.files})},
        "experiment": {"source": str(log), "recorded": recorded, **replayed},
    }


def _table(log: Path, jobs: int, old: str, new: str, before: dict[str, int | float], after: dict[str, int | float]) -> Iterable[str]:
    yield f"{log.name}: {counted(jobs, 'job')} as recorded and under {new}"
    heads = [name if len(name) <= _MOST_HEAD else f"...{name[3 - _MOST_HEAD :]}" for name in (old, new)]
    wide = max(20, *(len(head) + 2 for head in heads))
    yield f"  {'':24}{heads[0]:>{wide}}{heads[1]:>{wide}}{'change':>10}"
    for name, (told, unit, digits) in _COMPARED.items():
        a, b = before[name], after[name]
        if not a and not b and name.startswith(("jobs_", "migr", "lost")):
            continue
        change = f"{(b - a) / a:+.1%}" if a else "" if b == a else "new"
        yield f"  {told + (f' ({unit})' if unit else ''):24}{a:>{wide},.{digits}f}{b:>{wide},.{digits}f}{change:>10}"
