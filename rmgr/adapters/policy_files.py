"""Policies that users bring: a FILE.py, an entry point of group `rmgr.policies`, or a pipeline in a FILE.toml.

The policy of a module is its attribute `POLICY` if it has one, else the only class written in that module that has a
method `plan`. It must be a frozen dataclass with a class variable `name` and `plan(self, draft, causes)`; its fields are its parameters
(`rmgr.sched.parameters`). Names of files and classes mean nothing. Importing a file runs it with the rights of the user who named it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import linecache
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rmgr.errors import UNREADABLE_TEXT, ConfigError, RmgrError
from rmgr.sched.catalogue import CALL_POLICIES, POLICIES, call_policy_named, policy_named
from rmgr.sched.parameters import parameters_of, unknown
from rmgr.sched.pipeline import Configuration, configured, pipeline_from, served
from rmgr.sched.policy import sends_calls

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from rmgr.sched.policy import Policy

GROUP = "rmgr.policies"
RULE = (
    "one frozen dataclass with `name: ClassVar[str]` and `plan(self, draft, causes)`; of several, POLICY = ... names the one. "
    "rmgr/docs/policies.md has an example"
)
MEND = "mend it, then: rmgr policy check FILE.py; -v shows the whole traceback"


def load(name: str, params: Mapping[str, object]) -> Configuration:
    """Returns the meaning of `--policy NAME`: FILE.toml, FILE.py, a name of the catalogue, or a plug-in's.

    Raises: ConfigError, naming file and line if there are any; parameters of a FILE.toml are in the file, and are refused here.
    """
    if not name.endswith(".toml"):
        found = configured(name, params, find=partial(policy_class, directory=Path()))
        return replace(found, files=(name,)) if is_file(name) else found
    path = Path(name)
    if params:
        raise ConfigError(f"{path}: a pipeline has its parameters in it, --param cannot change them", hint="[stage.parameters]")
    document = read_toml(path)
    try:
        found = pipeline_from(document, find=partial(policy_class, directory=path.parent))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error
    beside = (str(path.parent / policy) for policy in found.policies if is_file(policy))
    return replace(found, files=(name, *dict.fromkeys(beside)))


def for_calls(name: str, params: Mapping[str, object]) -> Policy:
    """Returns the policy for calls of this name in the catalogue, of a FILE.py or of a plug-in.

    Raises: ConfigError for an unknown name, an unusable file, or a policy that places jobs.
    """
    if name in CALL_POLICIES or not (name.endswith(".py") or name in plugins()):
        return call_policy_named(name, params)
    policy = load(name, params).stages[0].policy
    if not sends_calls(policy):
        hint = "for_calls: ClassVar[bool] = True in the class of one that sends calls; rmgr/docs/policies.md has an example"
        raise ConfigError(f"{name} places jobs, it chooses no servers for calls", hint=hint)
    return policy


def recorded(pipelines: Mapping[str, Mapping[str, Any]]) -> Configuration:
    """Returns the pipelines of a leader's log, each with its partition. Raises: ConfigError for policies that are missing here."""
    found = [served(tables, partition, find=policy_class) for partition, tables in pipelines.items()]
    return Configuration(
        stages=tuple(stage for one in found for stage in one.stages),
        policies=tuple(name for one in found for name in one.policies),
        usage_half_life_us=next((one.usage_half_life_us for one in found if one.usage_half_life_us), 0),
    )


def is_file(name: str) -> bool:
    """Returns whether the name is a file's, not one of the catalogue or of a plug-in."""
    return name.endswith((".py", ".toml"))


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the document in a file. Raises: ConfigError naming file and line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="examples: deploy/policies/*.toml") from error
    except UNREADABLE_TEXT as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", hint="examples: deploy/policies/*.toml") from error


def policy_class(name: str, *, directory: Path = Path()) -> type[Any]:
    """Returns the class of a policy outside the catalogue. directory: base of a relative FILE.py. Raises: ConfigError."""
    if name.endswith(".py"):
        return class_of_file(directory / name)
    found = plugins()
    if name in found:
        return class_of_plugin(found[name])
    if "/" in name or (directory / name).is_file():
        raise ConfigError(
            f"{name} is no policy: a policy's file ends with .py, a pipeline's with .toml", hint="rmgr policy list shows names"
        )
    if name in CALL_POLICIES:
        policy_named(name)  # raises, saying what the policy is for
    raise unknown("policy", name, (*POLICIES, *found))


def plugins() -> dict[str, EntryPoint]:
    """Returns plug-ins by name, sorted, not loaded. A name of the catalogue stays the catalogue's."""
    found = {point.name: point for point in metadata.entry_points(group=GROUP) if point.name not in POLICIES}
    return dict(sorted(found.items()))


def class_of_plugin(point: EntryPoint) -> type[Any]:
    """Returns the policy class of a plug-in. Raises: ConfigError if it cannot be loaded, or is no policy."""
    whose = f"plug-in {point.name} ({point.value})"
    found = _run(point.load, whose, f"{point.module.rpartition('.')[2]}.py")
    if isinstance(found, ModuleType):
        return _policy_of(found, whose)
    _check(found, whose)
    kind: type[Any] = found
    return kind


def class_of_file(path: Path) -> type[Any]:
    """Returns the policy class of a Python file. Raises: ConfigError if it cannot be imported, has none, or several.

    A process runs a file once, and again when its bytes have changed; it writes nothing beside the file.
    """
    absolute = path.absolute()
    try:
        source = absolute.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="name a policy file that ends with .py") from error
    name = f"rmgr_policy_{hashlib.sha256(str(absolute).encode() + source).hexdigest()[:16]}"
    module = sys.modules.get(name)
    if module is None:
        module = sys.modules[name] = ModuleType(name)  # dataclasses look up the module of their annotations
        module.__file__ = str(absolute)
        linecache.checkcache(str(absolute))
        try:
            _run(partial(_execute, source, absolute, module), str(path), absolute.name)
        except BaseException:
            del sys.modules[name]
            raise
    return _policy_of(module, str(path))


def _execute(source: bytes, path: Path, module: ModuleType) -> None:
    exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))  # noqa: S102 - whoever names the file wants it run


def _run(load: Callable[[], Any], whose: str, file: str) -> Any:
    """Runs code of the user's. file: the file whose line numbers are reported."""
    try:
        return load()
    except RmgrError as error:
        raise ConfigError(f"{whose}: {error.message}", hint=error.hint) from error
    except SyntaxError as error:
        where = f" in {error.filename}" if error.filename and not error.filename.endswith(file) else ""
        raise ConfigError(f"{whose}, line {error.lineno}: not valid Python: {error.msg}{where}", hint=MEND) from error
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == file]
        where = f", line {lines[-1]}" if lines else ""
        does = "importing it" if file else "a default of its fields"
        raise ConfigError(f"{whose}{where}: {does} raises {type(error).__name__}: {error}", hint=MEND) from error


def _policy_of(module: ModuleType, whose: str) -> type[Any]:
    """Returns the policy class of a module, by the rule above. Raises: ConfigError."""
    named = getattr(module, "POLICY", None)
    if named is not None:
        _check(named, f"{whose}: POLICY")
        return named  # type: ignore[no-any-return]  # checked
    written = (kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__)
    found = [kind for kind in dict.fromkeys(written) if callable(getattr(kind, "plan", None)) and not getattr(kind, "_is_protocol", False)]
    if not found:
        raise ConfigError(f"{whose} has no policy in it", hint=RULE)
    if len(found) > 1:
        names = ", ".join(f"{kind.__name__} (line {_line(kind)})" for kind in found)
        raise ConfigError(f"{whose} has {len(found)} policies in it: {names}", hint=f"say which one: POLICY = {found[0].__name__}")
    _check(found[0], whose)
    return found[0]


def _check(kind: object, whose: str) -> None:
    """Raises: ConfigError unless `kind` is the class of a policy."""
    if not isinstance(kind, type):
        raise ConfigError(f"{whose} is no class, but {type(kind).__name__}", hint=RULE)
    message = f"{whose}: class {kind.__name__}"
    if not callable(getattr(kind, "plan", None)):
        raise ConfigError(f"{message} has no method plan", hint=RULE)
    if not dataclasses.is_dataclass(kind) or "__dataclass_params__" not in vars(kind):
        raise ConfigError(f"{message} (line {_line(kind)}) is no dataclass", hint=RULE)
    if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # every dataclass has it
        raise ConfigError(
            f"{message} (line {_line(kind)}) is not frozen: a policy keeps nothing from pass to pass",
            hint="@dataclass(frozen=True, slots=True)",
        )
    if not isinstance(getattr(kind, "name", None), str) or not kind.name:  # type: ignore[attr-defined]  # just asked
        raise ConfigError(f"{message} (line {_line(kind)}) has no name", hint='name: ClassVar[str] = "my_policy"')
    _run(partial(parameters_of, kind), message, "")  # a default of a field may raise
    try:
        inspect.signature(kind.plan).bind(None, None, None)  # type: ignore[attr-defined]  # asked above
    except TypeError as error:
        raise ConfigError(f"{message}: plan must take (self, draft, causes): {error}", hint=RULE) from error


def _line(kind: type) -> int:
    """Returns the line where a class begins; 0 if unknown."""
    try:
        return inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return 0
