"""The log of a scheduler: every fact it received and every decision it made, one JSON object a line, so that it can be replayed.

```
{"log": "rmgr/events/1", "policy": "easy", "parameters": {}, "seed": 0, "carried_out": "at once", "state": {"nodes": [{"id": 0}, ...]}}
{"at": 5000000, "fact": "job_submitted", "job": {"id": 1, "submit_us": 5000000, "processes": 4}}
{"at": 5000000, "pass": 1, "causes": ["job_submitted"], "decisions": [{"do": "start", "job_id": 1, "placement": [[0, 3, 1]], "why": "..."}]}
{"at": 9000000, "fact": "job_ended", "job_id": 1, "partition": "default"}
{"at": 9000000, "end": {"facts": 2, "passes": 1}}
```
- Line 1: whose log it is. `state`: the records at the beginning (fields of `Snapshot`). `carried_out`: `at once` (a simulation: each
  decision becomes a fact at once) or `as told` (a leader: the outcome of a decision is a fact of its own, as `job_started`).
- `about`: what the log is of; its `lost` (logs of calls): number of requests of gateways before it that were not logged.
- `at`: microseconds, never descending. `fact`: a method of `ClusterState` with its arguments by name.
- `because` may give the reason: `failed`, `repaired`, `drained`, `undrained`, `maintenance`, `cancelled`. A `job_ended` without it
  completed; with `failed` or `maintenance` it was lost with its node; a `job_withdrawn` without `cancelled` was refused.
- `gang_time`: how far the clock that counts slots of gangs is ahead of `at`, null if it cannot be read; 0 in a simulation.
- `pass`: number, causes and decisions of one pass, in order; a decision is one of `plan.py` with its fields, `why` as its sentence.
- The last line counts the others: a log without it was cut off, or is still being written.
Records are objects of their fields; fields that have their default value are left out. Times and ids are integers.

`Recorder` writes a log as it happens; `only` cuts one partition out of a log. Pure: text in, values out; the driver reads and writes
files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from inspect import signature
from itertools import compress
from math import isfinite
from operator import attrgetter, ne
from types import UnionType
from typing import Any, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from rmgr.errors import UNREADABLE_TEXT
from rmgr.sched.job import Running
from rmgr.sched.plan import Decision, Plan, Why
from rmgr.sched.policy import Cause
from rmgr.sched.records import Suspended, Usage
from rmgr.sched.state.cluster import ClusterState, Snapshot

FORMAT = "rmgr/events/1"
AT_ONCE, AS_TOLD = "at once", "as told"
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_encode = msgspec.json.Encoder().encode
_SIMPLE = frozenset({int, str, bool, type(None)})
_NOTHING = object()  # equals no value that a field may hold
#: Names of the methods of ClusterState that are facts.
FACTS = tuple(name for name in vars(ClusterState) if re.fullmatch(r"(?:job|node|maintenance|limits|call|server|gang)_[a-z_]+", name))
DEFAULT = "default"


class LogError(ValueError):
    """A line does not follow the format; the message names the field."""


class Opening(NamedTuple):
    """The first line. pipelines: partition -> the tables of its pipeline (in logs of leaders, whose policies may not be one by name)."""

    policy: str
    parameters: Mapping[str, str]
    seed: int
    state: Snapshot
    carried_out: str = AT_ONCE
    half_life_us: int = 0
    about: Mapping[str, Any] = {}
    pipelines: Mapping[str, Mapping[str, Any]] = {}


class Fact(NamedTuple):
    """A fact given to the state: `getattr(state, name)(**arguments)`."""

    at_us: int
    name: str
    arguments: Mapping[str, Any]
    because: str = ""

    def tell(self, state: ClusterState) -> Any:
        return getattr(state, self.name)(**self.arguments)


class Passed(NamedTuple):
    """A pass. decisions: as `described`, comparable with those of another pass."""

    at_us: int
    number: int
    causes: tuple[str, ...]
    decisions: tuple[Mapping[str, Any], ...]


class End(NamedTuple):
    """The last line: the number of facts and passes before it."""

    at_us: int
    facts: int
    passes: int


Entry: TypeAlias = Opening | Fact | Passed | End


def encode(entry: Entry) -> str:
    """Returns the entry as one line, without its end."""
    match entry:
        case Fact():
            plain: dict[str, Any] = {"at": entry.at_us, "fact": entry.name}
            for key, value in entry.arguments.items():
                plain[key] = value if type(value) in _SIMPLE else _plain(value)
            if entry.because:
                plain["because"] = entry.because
        case Passed():
            plain = {"at": entry.at_us, "pass": entry.number, "causes": entry.causes, "decisions": entry.decisions}
        case Opening():
            plain = {"log": FORMAT} | {
                name: _plain(value) for name, value in entry._asdict().items() if value or name in {"policy", "seed", "parameters"}
            }
        case End(at_us, facts, passes):
            plain = {"at": at_us, "end": {"facts": facts, "passes": passes}}
    try:
        return _encode(plain).decode()
    except OverflowError:  # a number of more than 64 bits
        return _JSON.encode(plain)


def decode(line: str) -> Entry:
    """Reads one line. Raises: LogError naming the field that is wrong."""
    try:
        plain = json.loads(line)
    except UNREADABLE_TEXT as error:
        raise LogError(f"no JSON: {error}") from error
    if not isinstance(plain, dict):
        raise LogError(f"an object is expected, not {type(plain).__name__}")
    if "log" in plain:
        return _opening(plain)
    at_us = _made(int, plain.get("at"), "at")
    if "pass" in plain:
        decisions = plain.get("decisions")
        if not isinstance(decisions, list) or not all(isinstance(one, dict) and isinstance(one.get("do"), str) for one in decisions):
            raise LogError("field decisions: a list of objects with `do` is expected")
        causes = _made(tuple[str, ...], plain.get("causes"), "causes")
        return Passed(at_us, _made(int, plain["pass"], "pass"), causes, tuple(decisions))
    if "end" in plain:
        counts = plain["end"] if isinstance(plain["end"], dict) else {}
        return End(at_us, _made(int, counts.get("facts"), "end.facts"), _made(int, counts.get("passes"), "end.passes"))
    name = plain.get("fact")
    if name not in FACTS:
        raise LogError(f"field fact: {name!r} is none of {', '.join(FACTS)}")
    because = _made(str, plain.pop("because", ""), "because")
    given = {key: value for key, value in plain.items() if key not in {"at", "fact"}}
    return Fact(at_us, name, _arguments(name, given), because)


def fact(at_us: int, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any], because: str = "") -> Fact:
    """Returns the fact that corresponds to a call of the state's method `name` with these arguments."""
    return Fact(at_us, name, {**dict(zip(_parameters(name), arguments, strict=False)), **named}, because)


def described(decisions: Iterable[Decision]) -> tuple[Mapping[str, Any], ...]:
    """Returns decisions in the form of the log."""
    return tuple({"do": _words(type(decision).__name__), **_plain(decision)} for decision in decisions)


def decision(plain: Mapping[str, Any]) -> Decision:
    """Returns the decision in a log's line. Raises: LogError naming the field."""
    kind = _DECISIONS.get(plain.get("do", ""))
    if kind is None:
        raise LogError(f"field do: {plain.get('do')!r} is none of {', '.join(_DECISIONS)}")
    made: Decision = _record(kind, {key: value for key, value in plain.items() if key != "do"}, "decision")
    return made


class Recorder:
    """Writes one log as it happens: each fact and each pass as a line to `write`. `because`: the reason of the facts that follow."""

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        policy: str,
        parameters: Mapping[str, str],
        about: Mapping[str, Any],
        pipelines: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._write = write
        self._pipelines = pipelines or {}
        self._policy, self._parameters, self._about = policy, dict(parameters), about
        self._facts = self._passes = 0
        self.because = ""

    def begin(self, state: ClusterState, *, seed: int, half_life_us: int) -> None:
        """Writes the first line."""
        self._line(self.opening(state, seed=seed, half_life_us=half_life_us))

    def opening(self, state: ClusterState, *, seed: int, half_life_us: int) -> Opening:
        """Returns the first line as a value, for callers that write it later: with many jobs its text takes a while. Cost: O(records)."""
        return Opening(self._policy, self._parameters, seed, state.snapshot(), AT_ONCE, half_life_us, self._about, self._pipelines)

    def around(self, state: ClusterState, now: Callable[[], int]) -> ClusterState:
        """Wraps the state so that each fact is also written down."""
        return _Telling(state, self, now)  # type: ignore[return-value]  # it has its facts, and nothing else is asked of it

    def told(self, now_us: int, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self._facts += 1
        self._line(fact(now_us, name, arguments, named, self.because))

    def passed(self, now_us: int, causes: frozenset[Cause], plan: Plan) -> None:
        self._passes += 1
        self._line(Passed(now_us, self._passes, tuple(sorted(causes)), described(plan.decisions)))

    def end(self, now_us: int) -> None:
        """Writes the last line."""
        self._line(End(now_us, self._facts, self._passes))

    def _line(self, entry: Entry) -> None:
        self._write(encode(entry) + "\n")


class _Telling:
    def __init__(self, state: ClusterState, recorder: Recorder, now: Callable[[], int]) -> None:
        self._state, self._recorder, self._now = state, recorder, now

    def __getattr__(self, name: str) -> Callable[..., Any]:
        tell = getattr(self._state, name)

        def told(*arguments: Any, **named: Any) -> Any:
            self._recorder.told(self._now(), name, arguments, named)
            return tell(*arguments, **named)

        return told


def only(entries: Iterable[Entry], partition: str) -> Iterator[Entry]:
    """Cuts one partition out of a log: a log of its own, which replays to the same decisions. Cost: O(1) an entry.

    Passes are renumbered, and the end counts right. The decisions of a pass depend on other partitions only by recorded usage (fair share)
    and by dependencies between jobs: usage is kept; a job that waits for a job of another partition waits for ever.
    """
    facts = passes = 0
    for entry in entries:
        match entry:
            case Opening():
                yield _opening_of(entry, partition)
            case Fact() if _partition_of_fact(entry) in (partition, None):
                facts += 1
                yield entry
            case Passed():
                passes += 1
                yield entry._replace(number=passes, decisions=tuple(one for one in entry.decisions if _partition_told(one) == partition))
            case End():
                yield entry._replace(facts=facts, passes=passes)


def _opening_of(opening: Opening, partition: str) -> Opening:
    """Cuts the first line; policy and parameters become those of the partition if it has one stage."""
    pipelines = {name: tables for name, tables in opening.pipelines.items() if name == partition}
    stages: list[dict[str, Any]] = [stage for tables in pipelines.values() for stage in tables.get("stage", [])]
    state = replace(opening.state, **{part.name: _records_of(opening.state, part.name, partition) for part in fields(Snapshot)})
    if len(stages) == 1:
        parameters = {name: str(value) for name, value in stages[0].get("parameters", {}).items()}
        opening = opening._replace(policy=str(stages[0]["policy"]), parameters=parameters)
    return opening._replace(pipelines=pipelines, state=state)


def _records_of(state: Snapshot, name: str, partition: str) -> tuple[Any, ...]:
    records: tuple[Any, ...] = getattr(state, name)
    if name in {"limits", "pinned"}:  # (partition, value)
        return tuple(record for record in records if record[0] == partition)
    if name in {"reservations", "holds"}:  # of waiting jobs
        waiting = {job.id for job in state.waiting if job.partition == partition}
        return tuple(record for record in records if record.job_id in waiting)
    return tuple(record for record in records if isinstance(record, Usage) or _partition_of(record) == partition)


def _partition_of(record: Any) -> str:
    """Returns the partition of any record of a snapshot."""
    if isinstance(record, Suspended):
        record = record.run
    if isinstance(record, Running):
        record = record.job
    return str(record.partition)


def _partition_of_fact(fact: Fact) -> str | None:
    """Returns the partition that a fact is about; None if it is not a single one (the end of a maintenance)."""
    if "partition" in fact.arguments:
        return str(fact.arguments["partition"])
    record = next((value for value in fact.arguments.values() if isinstance(value, Running) or hasattr(value, "partition")), None)
    if record is not None:
        return _partition_of(record)
    return None if fact.name == "maintenance_over" else DEFAULT


def _partition_told(decision: Any) -> str:
    """Returns the partition of a decision as `described` writes it, where the default partition is left out."""
    told = decision.get("partition")
    if told is None and isinstance(decision.get("gang"), dict):
        told = decision["gang"].get("partition")
    return str(told or DEFAULT)


class _Fields(NamedTuple):
    """Fields of a record that are written. values: returns what a record holds in them; None: the record itself is that tuple."""

    names: tuple[str, ...]
    defaults: tuple[object, ...]
    values: Callable[[object], tuple[object, ...]] | None


# -- values <-> JSON ------------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    kind: type = type(value)
    if kind in _SIMPLE:
        return value
    if kind is tuple or kind is list:
        return [part if type(part) in _SIMPLE else _plain(part) for part in value]
    if kind is Why:
        return str(value)
    if (known := _fields(kind)) is not None:
        names, defaults, values = known
        held = value if values is None else values(value)
        told = compress(zip(names, held, strict=True), map(ne, held, defaults))
        return {name: part if type(part) in _SIMPLE else _plain(part) for name, part in told}
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} cannot be written into a log")
    if not isinstance(value, int | str | float):
        raise TypeError(f"a {kind.__name__} cannot be written into a log")
    return value


@cache
def _fields(kind: type) -> _Fields | None:
    """Returns the fields of a NamedTuple or a dataclass, None for other types."""
    names = getattr(kind, "_fields", None)
    if names is not None and issubclass(kind, tuple):
        known = getattr(kind, "_field_defaults", {})
        return _Fields(names, tuple(known.get(name, _NOTHING) for name in names), None)
    if not is_dataclass(kind):
        return None
    written = [part for part in fields(kind) if part.init]
    names = tuple(part.name for part in written)
    values = attrgetter(*names) if len(names) > 1 else lambda record: tuple(getattr(record, name) for name in names)
    return _Fields(names, tuple(_NOTHING if part.default is MISSING else part.default for part in written), values)


def _made(hint: Any, plain: Any, where: str) -> Any:
    """Returns a value of this type. Raises: LogError naming the field."""
    origin = get_origin(hint)
    if origin is tuple:
        if not isinstance(plain, list):
            raise LogError(f"field {where}: a list is expected, not {plain!r:.40}")
        kinds = get_args(hint)
        if kinds[-1] is ...:
            return tuple(_made(kinds[0], part, f"{where}[{i}]") for i, part in enumerate(plain))
        if len(kinds) != len(plain):
            raise LogError(f"field {where}: {len(kinds)} values are expected, not {len(plain)}")
        return tuple(_made(kind, part, f"{where}[{i}]") for i, (kind, part) in enumerate(zip(kinds, plain, strict=True)))
    if origin is UnionType:  # only with None
        return None if plain is None else _made(get_args(hint)[0], plain, where)
    if hint is Why:
        rule, _, text = _made(str, plain, where).partition(": ")
        return Why(rule, "{}", (text,))
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        return _record(hint, plain, where)
    if hint is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if isinstance(hint, type) and type(plain) is not hint:
        raise LogError(f"field {where}: {hint.__name__} is expected, not {plain!r:.40}")
    return plain


def _record(kind: Any, plain: Any, where: str) -> Any:
    if not isinstance(plain, dict):
        raise LogError(f"field {where}: an object is expected, not {plain!r:.40}")
    hints = _hints(kind)
    for key in plain:
        if key not in hints:
            raise LogError(f"field {where}.{key}: {kind.__name__} has no such field")
    values = {key: _made(hints[key], value, f"{where}.{key}") for key, value in plain.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise LogError(f"field {where}: {error}") from error


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


@cache
def _parameters(name: str) -> Mapping[str, Any]:
    """Returns the parameters of a fact with their types, in order."""
    method = getattr(ClusterState, name)
    hints = get_type_hints(method)
    return {parameter: hints[parameter] for parameter in signature(method).parameters if parameter != "self"}


def _arguments(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    known = _parameters(name)
    for key in given:
        if key not in known:
            raise LogError(f"field {key}: {name} has no such field")
    for key, parameter in signature(getattr(ClusterState, name)).parameters.items():
        if key != "self" and parameter.default is parameter.empty and key not in given:
            raise LogError(f"field {key}: {name} needs it")
    return {key: _made(known[key], value, key) for key, value in given.items()}


def _opening(plain: dict[str, Any]) -> Opening:
    if plain.pop("log") != FORMAT:
        raise LogError(f"field log: this release reads {FORMAT}")
    about = plain.pop("about", {})
    parameters = plain.pop("parameters", {})
    pipelines = plain.pop("pipelines", {})
    if not isinstance(about, dict) or not isinstance(parameters, dict):
        raise LogError("field parameters: an object is expected")
    if not isinstance(pipelines, dict) or not all(isinstance(tables, dict) for tables in pipelines.values()):
        raise LogError("field pipelines: an object of objects is expected")
    hints = {name: hint for name, hint in _hints(Opening).items() if name not in {"about", "parameters", "pipelines"}}
    for key in plain:
        if key not in hints:
            raise LogError(f"field {key}: the first line has no such field")
    values = {key: _made(hints[key], value, key) for key, value in plain.items()}
    try:
        return Opening(**values, parameters=parameters, about=about, pipelines=pipelines)
    except TypeError as error:
        raise LogError(f"the first line needs {', '.join(sorted({'policy', 'seed', 'state'} - set(values)))}") from error


@cache
def _words(name: str) -> str:
    """Turns `HoldCores` into `hold_cores`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


_DECISIONS: Mapping[str, type] = {_words(kind.__name__): kind for kind in get_args(Decision)}
