"""`rmgr policy check NAME|FILE`: tries a policy against the laws that all shipped ones keep; shows the smallest world that breaks one."""

from __future__ import annotations

import copy
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rmgr.adapters import policy_files
from rmgr.cli.display.render import emit
from rmgr.cli.session import Session, WorkEnded
from rmgr.client.progress import ProgressDisplay
from rmgr.errors import RmgrError
from rmgr.sched.catalogue import CALL_POLICIES, call_policy_named
from rmgr.sched.policy import Stage, sends_calls
from rmgr.sim.calls import laws as calls_laws
from rmgr.sim.laws.check import Drawn, Finding, LawsReport, Make, check, digest, told

HASHES = "hashes"
HASHES_SAY = "other interpreters, in which strings have other hashes, decide the same"
#: Most worlds, and most seconds of an interpreter, for this law.
MOST_HASHED = 20
_LONGEST_S = 60.0


def judge(session: Session, name: str, params: Mapping[str, str], *, worlds: int, seed: int, budget_s: float) -> None:
    """Tries every law and reports the findings. Raises: ConfigError if this is no policy; WorkEnded(1) if a law is broken."""
    make, drawn = _load_policy(name, params)
    with ProgressDisplay(f"worlds under {name}", enabled=not session.json) as display:
        asked: dict[str, Any] = {"worlds": worlds, "seed": seed, "budget_s": budget_s}
        asked["on_progress"] = lambda done: display.tell(done, worlds)
        report = calls_laws.check(make, **asked) if _is_for_calls(make) else check(make, drawn=drawn, **asked)
    if report.is_lawful:  # tried last: a policy that breaks another law shows nothing here
        report = replace(report, findings=(*report.findings, _try_hashes(name, params, min(worlds, MOST_HASHED), seed)))
    _conclude(session, report, name, params)


def _conclude(session: Session, report: LawsReport, name: str, params: Mapping[str, str]) -> None:
    """Prints the report. Raises: WorkEnded(1) if a law is broken."""
    again = ["rmgr", "policy", "check", name, *(word for key, value in params.items() for word in ("--param", f"{key}={value}"))]
    if session.json:
        emit({"policy": name, "params": dict(params), "lawful": report.is_lawful, **_as_json(report, again)})
    else:
        _print_report(report, again)
    if not report.is_lawful:
        raise WorkEnded(1)


def _load_policy(name: str, params: Mapping[str, str]) -> tuple[Make, Drawn]:
    """Returns a maker of the policy's stages, and what its worlds draw from. Raises: ConfigError if this is no policy."""
    if name in CALL_POLICIES:
        call_policy_named(name, params)
        return lambda: (Stage(call_policy_named(name, params)),), Drawn()
    configuration = policy_files.load(name, params)
    named = [partition for stage in configuration.stages for partition in stage.partitions]
    partitions = tuple(dict.fromkeys([*configuration.partitions, *named]))

    def make() -> tuple[Stage, ...]:
        return copy.deepcopy(configuration.stages)

    return make, Drawn(partitions=partitions, queues=tuple(queue.name for queue in configuration.queues))


def _is_for_calls(make: Make) -> bool:
    return all(sends_calls(stage.policy) for stage in make())


def _try_hashes(name: str, params: Mapping[str, str], worlds: int, seed: int) -> Finding:
    """Tries the law that no process can try alone: two interpreters, each with its own hashes of strings, must decide the same."""
    argv = [sys.executable, "-m", __name__, json.dumps([name, dict(params), worlds, seed])]
    children = [
        subprocess.Popen(argv, env=os.environ | {"PYTHONHASHSEED": str(hashes)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for hashes in (1, 2)
    ]
    try:
        answers = [child.communicate(timeout=_LONGEST_S) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    for child, (_, complaint) in zip(children, answers, strict=True):
        if child.returncode:
            last = complaint.strip().splitlines()[-1:] or ["no reason given"]
            raise RmgrError(f"{name} could not be run in another interpreter: {last[0]}", hint=f"PYTHONHASHSEED=1 {shlex.join(argv)}")
    same = answers[0][0] == answers[1][0]
    text = "" if same else "PYTHONHASHSEED=1 and 2 give different plans: a set of strings was iterated, or hash() used"
    return Finding(HASHES, HASHES_SAY, worlds, 0, seed=seed, text=text)


def _print_report(report: LawsReport, again: list[str]) -> None:
    out = sys.stdout.write
    for finding in report.findings:
        verdict = finding.verdict.upper() if finding.verdict == "broken" else finding.verdict
        out(f"{finding.law:<11} {verdict:<7} {finding.worlds:>5} worlds {finding.passes:>7} passes  {finding.says}\n")
    for finding in report.findings:
        if finding.verdict == "waived":
            out(f"\n{finding.law} is waived: {finding.waiver}\n  {finding.text}\n")
        elif finding.verdict == "broken":
            out(f"\n{finding.law} is broken: {finding.text}\n")
            if finding.breach is not None:
                out("in the smallest world found:\n" + "".join(f"{line}\n" for line in told(finding.breach)))
            out(f"repeat: {_repeat(finding, again)}\n")
    verdict = "every law holds" if report.is_lawful else "NOT lawful"
    out(f"\n{verdict}: {report.worlds} worlds, {report.passes} passes\n")


def _as_json(report: LawsReport, again: list[str]) -> dict[str, Any]:
    laws = []
    for finding in report.findings:
        row: dict[str, Any] = {"law": finding.law, "says": finding.says, "verdict": finding.verdict}
        row |= {"worlds": finding.worlds, "passes": finding.passes}
        if finding.waiver:
            row["waiver"] = finding.waiver
        if finding.verdict != "holds":
            row["breach"] = {"text": finding.text, "seed": finding.seed, "repeat": _repeat(finding, again)}
            if finding.breach is not None:
                row["breach"] |= {"at_us": finding.breach.at_us, "story": list(told(finding.breach))}
        laws.append(row)
    return {"worlds": report.worlds, "passes": report.passes, "laws": laws}


def _repeat(finding: Finding, again: list[str]) -> str:
    worlds = finding.worlds if finding.law == HASHES else 1
    return shlex.join([*again, "--seed", str(finding.seed), "--worlds", str(worlds)])


def _print_digest() -> None:
    """Prints the digest of all decisions; this is what the other interpreters run."""
    name, params, worlds, seed = json.loads(sys.argv[1])
    make, drawn = _load_policy(name, params)
    if _is_for_calls(make):
        sys.stdout.write(calls_laws.digest(make, worlds=worlds, seed=seed))
    else:
        sys.stdout.write(digest(make, worlds=worlds, seed=seed, drawn=drawn))


if __name__ == "__main__":
    _print_digest()
