"""Lists the policies for `rmgr policy list`: each one, where it works, and its parameters with kind, default and range."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rmgr.adapters import policy_files
from rmgr.cli.display.render import Column, Layout, emit, folded, paint, table
from rmgr.errors import ConfigError, UsageError
from rmgr.sched.catalogue import CALL_POLICIES, POLICIES, Entry
from rmgr.sched.parameters import Parameter, shown, unknown
from rmgr.sched.policy import sends_calls

#: Policies of pull queues: name -> what it does. They have no parameters.
PULLING = {
    "fair": "pull queues: users take turns; the work of one by priority, then arrival; a large task whose turn it is holds back later ones",
    "fifo": "pull queues: Starters take work by priority, then arrival; a large task at the head holds back later ones",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A policy as it is shown. dispatch: that of the queues it serves (pull, place), or `call` if it chooses servers for calls.

    origin: "" for rmgr's own. error: why it cannot be used."""

    name: str
    dispatch: str
    summary: str
    parameters: tuple[Parameter, ...] = ()
    origin: str = ""
    error: str = ""

    def described(self) -> dict[str, Any]:
        """Returns the policy as JSON (cli.md section 5)."""
        told: dict[str, Any] = {"name": self.name, "summary": self.summary, "parameters": {p.name: p.described() for p in self.parameters}}
        told["dispatch"] = self.dispatch
        return told | {key: value for key, value in (("origin", self.origin), ("error", self.error)) if value}


def everything() -> list[Listed]:
    """Returns all policies: of pull queues, of the catalogue, of plug-ins. A plug-in that cannot be loaded is listed with its error."""
    found = [Listed(name=name, dispatch="pull", summary=summary) for name, summary in PULLING.items()]
    found += [_listed_entry(name, entry) for name, entry in POLICIES.items()]
    found += [_listed_entry(name, entry) for name, entry in CALL_POLICIES.items()]
    for name, point in policy_files.plugins().items():
        try:
            found.append(_listed_entry(name, _entry(policy_files.class_of_plugin(point)), origin=point.value))
        except ConfigError as error:
            summary = f"cannot be loaded: {error.message}"
            found.append(Listed(name=name, dispatch="place", summary=summary, origin=point.value, error=error.message))
    return found


def one(name: str) -> Listed:
    """Returns the policy of that name, or the one in that FILE.py. Raises: ConfigError."""
    if name in PULLING:
        return Listed(name=name, dispatch="pull", summary=PULLING[name])
    if name in POLICIES:
        return _listed_entry(name, POLICIES[name])
    if name in CALL_POLICIES:
        return _listed_entry(name, CALL_POLICIES[name])
    if name.endswith(".toml"):
        raise UsageError(f"{name} is a pipeline of policies, not one", hint=f"rmgr sim run TRACE.swf --policy {name}")
    if not policy_files.is_file(name) and name not in policy_files.plugins():
        raise unknown("policy", name, (*PULLING, *POLICIES, *CALL_POLICIES, *policy_files.plugins()))
    return _listed_entry(name, _entry(policy_files.policy_class(name)), origin=name)


def draw(policies: Sequence[Listed]) -> None:
    """Prints one line per policy: name, parameters with their defaults, summary."""
    columns = (
        Column(name="POLICY", text=lambda p: p.name, is_id=True),
        Column(name="DISPATCH", text=lambda p: p.dispatch, is_id=True),
        Column(name="SUMMARY", text=lambda p: p.summary),
        Column(name="PARAMETERS", text=lambda p: " ".join(f"{item.name}={_default(item)}" for item in p.parameters if not item.goes_with)),
    )
    table(policies, columns, Layout())


def draw_one(policy: Listed) -> None:
    """Prints the parameters of one policy, one line each."""
    out = sys.stdout
    out.write(f"{folded(f'{policy.name}: {policy.summary}', out, indent=2)}\n")
    if not policy.parameters:
        out.write("It has no parameters.\n")
        return
    if out.isatty():  # the meanings would not fit beside the rest
        for item in policy.parameters:
            default = f"default {_default(item)}" if _default(item) else ""
            facts = "; ".join(filter(None, (str(item.kind), default, item.range or ", ".join(item.choices))))
            out.write(f"\n{paint(item.name, 'bold', out)}  {folded(facts, out, begin=len(item.name) + 2, indent=4)}\n")
            out.write(f"    {folded(_meaning(item), out, begin=4, indent=4)}\n")
        return
    columns = (
        Column(name="PARAMETER", text=lambda p: p.name, is_id=True),
        Column(name="KIND", text=lambda p: str(p.kind), is_id=True),
        Column(name="DEFAULT", text=_default),
        Column(name="RANGE", text=lambda p: p.range or ", ".join(p.choices)),
        Column(name="MEANING", text=_meaning),
    )
    table(policy.parameters, columns, Layout())


def _meaning(item: Parameter) -> str:
    return f"with {item.goes_with}: {item.what}" if item.goes_with else item.what


def tell(policies: list[Listed]) -> None:
    """Prints the policies as JSON."""
    emit({"policies": [policy.described() for policy in policies]})


def _listed_entry(name: str, entry: Entry, origin: str = "") -> Listed:
    dispatch = "call" if sends_calls(entry.policy) else "place"
    return Listed(name=name, dispatch=dispatch, summary=entry.summary, parameters=entry.parameters, origin=origin)


def _entry(kind: type[Any]) -> Entry:
    """Returns the entry of a policy outside the catalogue; its summary is the first line of the docstring of its class or module."""
    words = _first_line(kind.__doc__, kind.__name__) or _first_line(getattr(sys.modules.get(kind.__module__), "__doc__", None), "")
    return Entry(policy=kind, summary=words or f"a policy of your own (class {kind.__name__})")


def _first_line(text: str | None, name: str) -> str:
    """Returns the first line of a docstring, or "" for the signature that a dataclass gets by itself."""
    first = (text or "").strip().partition("\n")[0]
    return "" if name and first.startswith(f"{name}(") else first.rstrip(".")


def _default(parameter: Parameter) -> str:
    return "(required)" if parameter.required else shown(parameter.kind, parameter.default)
