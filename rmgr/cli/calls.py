"""`rmgr functions`, `servers`, `call`: functions that servers offer, where they would run, and calling one."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from rmgr.cli.display.render import Column, Layout, emit, folded, paint, printable, table
from rmgr.cli.session import Session, command
from rmgr.cli.session.tables import draw, table_options
from rmgr.errors import CallLost, NotFound, RmgrError, UsageError
from rmgr.model.units import counted, format_duration

if TYPE_CHECKING:
    from rmgr.client.calls import Caller, CallFuture
    from rmgr.model.interface import Argument, Interface

_EXITS = "0 ok, 3 no such server or function, 5 no gateway can be reached"
#: Most numbers of an array that go into JSON; numpy, too, prints larger arrays abridged.
_MOST_SHOWN = 1000
#: Most servers for which it is said why they are not open; `rmgr servers NAME` says it for each.
_MOST_TOLD = 8
#: First bytes of a numpy file.
_NPY = b"\x93NUMPY"
#: Most bytes of a .npy file before its numbers.
_MOST_HEADER = 64 * 1024
#: Hint for an argument that is too large.
_SPLIT = "split it over several calls, or keep it where the servers read it"
_TYPED = {"int": "a whole number, as 42", "float": "a number, as 0.5", "str": "text in UTF-8", "bytes": "any bytes, or @FILE"}
_OUTPUT = "where an output goes: arrays as .npy, all else as it is; once for each, in order"


def _age(seconds: float) -> str:
    return format_duration(seconds) if seconds < 1e8 else "-"


_SERVERS = (
    Column(name="SERVER", text=lambda s: s.name, is_id=True),
    Column(name="STATE", text=lambda s: s.state, state=True),
    Column(name="SITE", text=lambda s: s.site),
    Column(name="SLOTS", text=lambda s: str(s.slots), order=lambda s: s.slots, right=True),
    Column(name="RUN", text=lambda s: str(s.running), order=lambda s: s.running, right=True),
    Column(name="WAIT", text=lambda s: str(s.waiting), order=lambda s: s.waiting, right=True),
    Column(name="OTHER", text=lambda s: f"{s.other:.1f}", order=lambda s: s.other, right=True),
    Column(name="MOPS", text=lambda s: f"{s.mops:,.0f}", order=lambda s: s.mops, right=True),
    Column(name="MB/S", text=lambda s: f"{s.bytes_per_s / 1e6:,.1f}" if s.bytes_per_s else "-", order=lambda s: s.bytes_per_s, right=True),
    Column(name="AGE", text=lambda s: _age(s.age_s), order=lambda s: s.age_s, right=True),
    Column(name="ASSIGNED", text=lambda s: str(s.assigned), order=lambda s: s.assigned, right=True),
    Column(name="LIFE", text=lambda s: f"{s.life:x}", default=False),
    Column(name="WHY", text=lambda s: s.why, default=False),
)
_LINKS = (
    Column(name="GATEWAY", text=lambda k: k.gateway, is_id=True),
    Column(name="SITE", text=lambda k: k.site),
    Column(name="MB/S", text=lambda k: f"{k.bytes_per_s / 1e6:,.1f}" if k.bytes_per_s else "-", right=True),
    Column(name="ROUNDTRIP", text=lambda k: format_duration(k.round_trip_s), right=True),
    Column(name="AGE", text=lambda k: _age(k.age_s), right=True),
)
_TERMS = (
    Column(name="SERVER", text=lambda t: t.server, is_id=True),
    Column(name="L", text=lambda t: "" if t.note else f"{t.load:.2f}", right=True),
    Column(name="P(MOPS)", text=lambda t: "" if t.note else f"{t.mops:,.0f}", right=True),
    Column(name="T(MB/S)", text=lambda t: "" if t.note else f"{t.bytes_per_s / 1e6:,.1f}" if t.bytes_per_s else "-", right=True),
    Column(name="COMPUTING", text=lambda t: "" if t.note else format_duration(t.computing_s), right=True),
    Column(name="TRANSFER", text=lambda t: "" if t.note else format_duration(t.transfer_s), right=True),
    Column(name="TOTAL", text=lambda t: "" if t.note else format_duration(t.computing_s + t.transfer_s), right=True),
    Column(name="NOTE", text=lambda t: t.note),
)


@command(
    "functions",
    examples="""\
    rmgr functions                     what may be called, and where
    rmgr functions linsolve
    rmgr functions --json | jq -r '.functions[].name'""",
    exits=_EXITS,
)
@click.argument("function_names", nargs=-1, metavar="[FUNCTION]...")
def functions(session: Session, function_names: tuple[str, ...]) -> None:
    """Lists the functions that servers offer: version, arguments, cost of a call, whether it may run twice, and the servers."""
    from rmgr.model.interface import decode_interface, function_line

    caller = _caller(session)
    found: list[tuple[Any, Interface | None]] = []
    for name in function_names or ("",):
        reply = caller.asked(lambda client, name=name: client.functions(name))
        if name and not reply.functions:
            raise NotFound(
                f"no server offers {name!r}",
                hint=f"did you mean {reply.nearest!r}?" if reply.nearest else "rmgr functions; rmgr servers",
            )
        found += [(view, _readable(view.interface, decode_interface)) for view in reply.functions]
    if session.json:
        shapes = [one.table() | {"servers": list(view.servers), "odd": view.odd} for view, one in found if one is not None]
        emit({"functions": shapes})
        return
    for view, interface in found:
        if interface is not None:
            words = function_line(interface, list(view.servers))
            message = f"{words}  ({view.odd})" if view.odd else words
            sys.stdout.write(f"{folded(printable(message), sys.stdout, indent=4)}\n")
    if not found:
        session.note("no server offers anything; start one: rmgr server --functions FILE.toml, or rmgr dev --servers 2")


@command(
    "servers",
    examples="""\
    rmgr servers
    rmgr servers --watch
    rmgr servers s1                    its functions, and the ways to it
    rmgr servers --json | jq '.servers[] | {name, state, assigned}'""",
    exits=_EXITS,
)
@click.argument("server_names", nargs=-1, metavar="[SERVER]...")
@table_options
def servers(session: Session, server_names: tuple[str, ...], layout: Layout, watch: bool) -> None:
    """Lists servers of calls: state, slots, calls that RUN and WAIT, OTHER work in cores, speed, best link, age of the load, later calls.

    States: open; stale (no load for three refreshes: used only if all are stale); away (no gateway has its stream); odd (its interface
    differs, or another server has its name); closed.
    """
    caller = _caller(session)

    def once() -> None:
        reply = caller.asked(lambda client: client.servers(""))
        known = {server.name for server in reply.servers}
        for name in server_names:
            if name not in known:
                raise NotFound(f"there is no server {name!r}", hint=f"there are {', '.join(sorted(known)) or 'none'}: rmgr servers")
        shown = [server for server in reply.servers if not server_names or server.name in server_names]
        if session.json:
            emit({"policy": reply.policy, "degraded": reply.degraded, "epoch": reply.epoch, "servers": [_server_shape(s) for s in shown]})
            return
        table(shown, _SERVERS, layout)
        if not shown:
            session.note("no server is there; start one: rmgr server --functions FILE.toml, or rmgr dev --servers 2")
        if reply.degraded:
            session.note("no leader answers: the gateway picks servers by itself, as far as it knows them")
        for server in () if server_names else [server for server in shown if server.why][:_MOST_TOLD]:
            session.note(f"{server.name} is {server.state}: {printable(server.why)}")
        for server in shown if server_names else ():
            sys.stdout.write(f"\n{paint(server.name, 'bold', sys.stdout)} offers {', '.join(server.functions) or 'nothing'}\n")
            if server.why:
                sys.stdout.write(f"{folded(printable(f'{server.state}: {server.why}'), sys.stdout)}\n")
            if server.links:
                table(server.links, _LINKS, Layout(header=layout.header))

    draw(session, once, watch=watch)


@command(
    "call",
    examples="""\
    rmgr call echo hello
    rmgr call linsolve A.npy b.npy -o x.npy     arrays from files, the answer into one
    rmgr call model --operations 50000000 hi    an argument that is a number may be an option of its name
    rmgr call linsolve A.npy b.npy --trace      where its time goes, step by step
    rmgr call --explain linpack --n 600         which server would get it, and why; sends nothing
    rmgr call linsolve@1 A.npy b.npy --timeout 60s""",
    exits="""\
0 ok, 1 the function failed, 2 the arguments do not fit, 3 no such function, 4 not allowed, 5 no server or gateway,
6 its time was over, 8 it may have run, and its answer is lost""",
    settings={"ignore_unknown_options": True},
)
@click.argument("function", metavar="FUNCTION[@VERSION]")
@click.argument("words", nargs=-1, metavar="[ARGUMENT]... [--SIZE N]...", type=click.UNPROCESSED)
@click.option("-o", "--output", "outputs", metavar="FILE", multiple=True, type=click.Path(dir_okay=False), help=_OUTPUT)
@click.option("--trace", is_flag=True, help="print the six steps of the call, and where its time went")
@click.option("--explain", is_flag=True, help="which server would get it, by which numbers; nothing is sent")
def call(session: Session, function: str, words: tuple[str, ...], outputs: tuple[str, ...], trace: bool, explain: bool) -> None:
    """Calls FUNCTION on the server that is expected to answer first. Gives up after --timeout.

    ARGUMENT: an array is a .npy file; numbers and text are typed as they are; @FILE is the content of a file. -o takes the outputs in
    order; other outputs are printed.
    """
    given, options = _split(words)
    caller = _caller(session)
    interface = caller.interface(function, deadline_s=session.timeout_s or 10.0)
    if explain:
        _explain(session, caller, interface, given, options)
        return
    arguments = _arguments(interface, given, options)
    if len(outputs) > len(interface.outputs):
        has = counted(len(interface.outputs), "output")
        raise UsageError(f"{interface.key} has {has}, not {len(outputs)}", hint=f"rmgr functions {interface.name}")
    for path in outputs:
        _check_writable(Path(path))
    began_s = time.monotonic()
    future = caller.call_async(interface.key, *arguments, timeout=session.timeout_s or None)
    try:
        result = future.result()
    finally:
        caller.close()  # its server learns what became of the call before this process ends
    seconds = time.monotonic() - began_s
    values = result if len(interface.outputs) > 1 else () if not interface.outputs else (result,)
    troubles = [trouble for value, path in zip(values, outputs, strict=False) if (trouble := keep(value, Path(path))) is not None]
    if session.json:
        told = {argument.name: _json_of(value) for argument, value in zip(interface.outputs, values, strict=True)}
        if troubles:
            raise troubles[0]
        emit({"function": interface.key, "server": future.server, "seconds": round(seconds, 6), "outputs": told, **_timing(future)})
        return
    for argument, value in list(zip(interface.outputs, values, strict=True))[len(outputs) :]:
        _print(argument.name if len(interface.outputs) > 1 else "", value)
    if troubles:  # every output is kept or printed before the first error is raised
        raise troubles[0]
    if trace:
        for step, name, took_s, text in future.timing.trace:
            sys.stderr.write(f"{step} {name:<10} {format_duration(took_s):>8}  {printable(text)}\n")


# -- what is typed ------------------------------------------------------------------------------------------------------------


def _split(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the arguments, and the sizes by name: `--n 600`, `--n=600`. Raises: UsageError."""
    given: list[str] = []
    sizes: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word.startswith("--") and len(word) > 2 and not word[2:3].isdigit():
            name, has_value, value = word[2:].partition("=")
            if not has_value:
                value = next(rest, "")
            if not value:
                raise UsageError(f"--{name} has no value", hint=f"--{name} 600")
            sizes[name] = value
        else:
            given.append(word)
    return given, sizes


def _arguments(interface: Interface, given: Sequence[str], options: dict[str, str]) -> list[Any]:
    """Returns the input values in order: a scalar may be named (`--n 600`), the others go by position. Raises: UsageError."""
    rest = iter(given)
    values = []
    for argument in interface.inputs:
        word = options.pop(argument.name, None) if argument.shape is None else None
        if word is None:
            word = next(rest, None)
        if word is None:
            raise UsageError(
                f"{interface.key} takes {counted(len(interface.inputs), 'argument')}, and {argument.name} is missing: {argument}",
                hint=f"rmgr functions {interface.name}",
            )
        values.append(_value(argument, word))
    more = [*rest, *(f"--{name}" for name in options)]
    if more:
        raise UsageError(f"{interface.key} does not take {' '.join(more)}", hint=f"rmgr functions {interface.name}")
    return values


def _value(argument: Argument, word: str) -> Any:
    if argument.shape is not None:
        return array_in(argument.name, word)
    data = bytes_in(word[1:]) if word.startswith("@") else None
    try:
        match argument.type:
            case "bytes":
                return data if data is not None else word.encode("utf-8", "surrogateescape")
            case "str":
                return data.decode() if data is not None else word
            case "int":
                return int(word)
            case _:
                return float(word)
    except ValueError:
        raise UsageError(f"{argument.name} = {word!r} is not {argument.type}", hint=_TYPED[argument.type]) from None


def array_in(name: str, word: str) -> Any:
    import numpy as np

    from rmgr.model.arrays import MAX_BYTES

    how = "numpy.save(FILE, array) writes one"
    try:
        if os.stat(word).st_size > MAX_BYTES + _MOST_HEADER:
            raise UsageError(f"{name}: {word} has more than the {MAX_BYTES:,} bytes that an argument may have", hint=_SPLIT)
        with open(word, "rb") as file:  # read whole: a mapped file that shrinks would end this process
            readable: Any = file if Path(word).is_file() else io.BytesIO(_read_bounded(file, word))
            if (magic := readable.read(len(_NPY))) != _NPY:
                several = ", but several arrays" if magic.startswith(b"PK") else ""
                raise UsageError(f"{name}: {word} is no .npy file{several}", hint=how)
            readable.seek(0)
            found = np.load(readable, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"{name}: {word} cannot be read: {error.strerror or error}", hint=how) from None
    except (ValueError, EOFError) as error:
        if "object" in str(error).lower():  # numpy's own message says how to unpickle it
            hint = "objects do not travel: give it a type of numbers, with astype"
            raise UsageError(f"{name}: {word} is an array of objects", hint=hint) from None
        raise UsageError(f"{name}: {word} is no whole .npy file: {str(error)[:200]}", hint=how) from None
    except MemoryError:
        raise UsageError(f"{name}: {word} says that it has more values than there is memory", hint=how) from None
    return found


def bytes_in(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return _read_bounded(file, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="@FILE is a file of this machine that you may read") from None


def _read_bounded(file: BinaryIO, name: str) -> bytes:
    """Reads a whole file, which may be endless, up to the limit. Raises: UsageError, OSError."""
    from rmgr.model.arrays import MAX_BYTES

    data = bytearray()
    while len(data) <= MAX_BYTES and (piece := file.read(1 << 20)):
        data += piece
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} has more than the {MAX_BYTES:,} bytes that an argument may have", hint=_SPLIT)
    return bytes(data)


# -- what is shown --------------------------------------------------------------------------------------------------------------


def _explain(session: Session, caller: Caller, interface: Interface, given: Sequence[str], options: dict[str, str]) -> None:
    sizes: dict[str, Any] = {}
    if given:
        from rmgr.model.arrays import fit_inputs

        sizes = fit_inputs(interface, _arguments(interface, given, options)).sizes
        options = {}
    for name, text in options.items():
        try:
            sizes[name] = json.loads(text)
        except ValueError:
            raise UsageError(f"--{name} {text}: a number is needed", hint=f"as in: --{name} 1000") from None
        if name not in interface.sizes:
            raise UsageError(f"{interface.key} has no size {name}", hint=f"sizes: {', '.join(interface.sizes) or 'none'}")
    interface.cost(sizes)  # its error names the missing sizes
    pick = caller.asked(lambda client: client.explain(interface.name, interface.version, json.dumps(sizes)))
    if session.json:
        terms = [{field.name: value for field, value in term.ListFields()} for term in pick.terms]
        emit({"function": interface.key, "server": pick.server or None, "policy": pick.policy, "why": pick.why, "terms": terms})
        return
    table(pick.terms, _TERMS, Layout())
    sys.stdout.write(f"\n{folded(printable(f'{pick.policy}: {pick.why}'), sys.stdout)}\n")


def _readable(text: bytes, decode: Callable[[bytes], Interface]) -> Interface | None:
    try:
        return decode(text)
    except UsageError:
        return None


def _check_writable(path: Path) -> None:
    """Checks that an output can be written, before anything is called. Raises: UsageError."""
    is_new = not path.exists()
    if not is_new and not path.is_file():
        return  # a pipe or device: opening it would already use it
    try:
        path.open("ab").close()
    except OSError as error:
        why = f"-o: {path} cannot be written: {error.strerror}; nothing was called"
        raise UsageError(why, hint="name a file in a directory that exists, and that is yours") from None
    if is_new:
        path.unlink()


def keep(value: Any, path: Path) -> RmgrError | None:
    """Writes an output, or a spare file if that fails. Returns: None; UsageError, which names the spare file; CallLost."""
    try:
        _write(value, path)
        return None
    except OSError as error:
        why = f"-o: {path} cannot be written: {error.strerror or error}"
    spare = Path(tempfile.mkdtemp(prefix="rmgr-answer-")) / path.name
    try:
        _write(value, spare)
    except OSError as error:
        return CallLost(f"{why}; nor {spare}: {error.strerror}; the answer is lost", hint="make room, and call again")
    return UsageError(f"{why}; the answer is in {spare}", hint=f"mv {shlex.quote(str(spare))} {shlex.quote(str(path))}")


def _write(value: Any, path: Path) -> None:
    if isinstance(value, bytes):
        path.write_bytes(value)
    elif hasattr(value, "dtype"):
        import numpy as np

        with path.open("wb") as sink:
            np.lib.format.write_array(SimpleNamespace(write=sink.write), value, allow_pickle=False)  # np.save cannot write into a pipe
    else:
        path.write_text(f"{value}\n", encoding="utf-8")


def _print(name: str, value: Any) -> None:
    head = f"{name} = " if name else ""
    if isinstance(value, bytes):
        sys.stdout.write(head)
        sys.stdout.flush()
        sys.stdout.buffer.write(value + b"\n" if sys.stdout.isatty() and not value.endswith(b"\n") else value)
        sys.stdout.buffer.flush()
        return
    sys.stdout.write(f"{head}{printable(value) if isinstance(value, str) else value}\n")


def _json_of(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    if hasattr(value, "dtype"):
        shape = {"dtype": str(value.dtype), "shape": list(value.shape)}
        plain = value.size <= _MOST_SHOWN and value.dtype.kind in "biuf"
        return {**shape, "values": value.tolist()} if plain else shape
    return value


def _timing(future: CallFuture) -> dict[str, Any]:
    timing = future.timing
    parts = {name: round(getattr(timing, name), 6) for name in ("arguments", "waited", "ran", "answer", "computing", "transfer")}
    trace = [{"step": step, "name": name, "seconds": round(took_s, 6), "text": text} for step, name, took_s, text in timing.trace]
    return {"timing": parts, "trace": trace}


def _fields(view: Any, names: str, **renamed: str) -> dict[str, Any]:
    return {name: getattr(view, name) for name in names.split()} | {name: getattr(view, field) for name, field in renamed.items()}


def _server_shape(server: Any) -> dict[str, Any]:
    told = _fields(server, "name state site slots running waiting other mops assigned why", bytes_per_second="bytes_per_s", age="age_s")
    links = [_fields(link, "gateway site", bytes_per_second="bytes_per_s", round_trip="round_trip_s", age="age_s") for link in server.links]
    return told | {"life": f"{server.life:x}", "functions": list(server.functions), "links": links}


def _caller(session: Session) -> Caller:
    from rmgr.client.calls import Caller

    return Caller(session.config())
