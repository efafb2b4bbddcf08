"""The session of one command line, which every command gets as its argument, and the global options that it holds, before or after the
command's name; examples in each command's help.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.session.errors import with_hint
from rmgr.cli.words.params import DURATION
from rmgr.client.reach import Reach
from rmgr.errors import closest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: A line of an epilog: an example, at least two blanks, its explanation; and an example alone.
_EXPLAINED = re.compile(r"(?P<what> *\S.*?\S {2,})(?P<why>\S.*)")
#: Least similarity (difflib's ratio) at which a known name counts as the one that was meant.
_LIKE = 0.74
#: click's mark before a paragraph that must not be wrapped.
_TABLE = "\b\n"
_IS_TYPED = re.compile(r" *(rmgr |[A-Z_]+=|\{|echo )")


# click would call a word that is no number "not a valid integer range".
click.IntRange.name, click.FloatRange.name = "integer", "number"

#: Seconds that completion may take: a tab must not hang.
_PATIENCE_S = 1.0


class Session(Reach):  # no dataclass of its own: to make one costs each command 1 ms
    """The global options of one command line, and its access to the cluster; it tells the user notes on stderr."""

    json: bool = False
    is_quiet: bool = False  #: prints no notes: nobody would read them
    is_parsed: bool = False  #: the command's own options were parsed, so `json` is what the user said

    def note(self, text: str) -> None:
        """Writes one line for people to stderr."""
        if self.is_quiet:
            return
        from rmgr.cli.display.render import folded, here, paint

        with contextlib.suppress(OSError):  # a terminal that was closed: the command matters more than the note
            sys.stderr.write(paint(folded(f"rmgr: {here(text)}", sys.stderr, indent=6), "dim", sys.stderr) + "\n")
            sys.stderr.flush()

    def answer(self, document: dict[str, Any], text: str = "", *notes: str) -> None:
        """Answers the user: with --json by the document alone, else by the text, in whole lines, and by notes."""
        if self.json:
            from rmgr.cli.display.render import emit

            emit(document)
            return
        sys.stdout.write(text)
        for note in notes:
            self.note(note)


class GlobalOption(click.Option):
    """An option that every command understands; its value goes to the session, never to the command."""

    def __init__(self, *names: str, **attributes: Any) -> None:
        super().__init__(list(names), expose_value=False, callback=_remember, **attributes)


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if value is not None and value is not False and value != 0 and parameter.name:
        setattr(ctx.ensure_object(Session), parameter.name, value)
    return value


def global_options() -> list[click.Parameter]:
    """Returns fresh instances for one command."""
    return [
        GlobalOption("--zk", metavar="HOSTS[/CHROOT]", help="ZooKeeper servers, as h1:2181,h2:2181/rmgr/NAME  [RMGR_ZK]"),
        GlobalOption("--store", metavar="URL", help="data store, as sqlite:PATH or cassandra://H1,H2/KEYSPACE  [RMGR_STORE]"),
        GlobalOption("--gateway", metavar="HOST:PORT", help="a Submitter gateway instead of ZooKeeper  [RMGR_GATEWAY]"),
        GlobalOption("--config", "config_file", metavar="FILE", help="configuration file  [RMGR_CONFIG]"),
        GlobalOption("--json", "json", is_flag=True, default=None, help="one JSON value on stdout"),
        GlobalOption("--timeout", "timeout_s", type=DURATION, metavar="DURATION", help="give up after this time (exit 6)"),
        GlobalOption("-v", "--verbose", "verbose", count=True, help="print more to stderr"),
    ]


def _fitted(lines: Sequence[str], room: int) -> Iterator[str]:
    """Fits lines of an epilog into `room` columns: wraps sentences, and explanations beside or below examples; commands stay whole."""
    import textwrap  # only help needs it

    sentence = ""
    for written in lines:
        line = f"{sentence} {written.strip()}" if sentence else written  # joins a sentence that the next line continues
        sentence = ""
        indent = line[: len(line) - len(line.lstrip())]
        if len(line) <= room:
            yield line
        elif (found := _EXPLAINED.fullmatch(line)) is not None:
            is_beside = len(found["what"]) < room // 2
            column = len(found["what"]) if is_beside else len(indent) + 4
            told = textwrap.wrap(found["why"], max(20, room - column), break_long_words=False, break_on_hyphens=False)
            yield found["what"] + told[0] if is_beside else found["what"].rstrip()
            yield from (" " * column + rest for rest in told[is_beside:])
        elif _IS_TYPED.match(line):
            yield line
        else:
            *wrapped, last = textwrap.wrap(line, room, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
            yield from wrapped
            if line.endswith(","):
                sentence = last
            else:
                yield last
    if sentence:
        yield sentence


class _Help:
    """Help with a section for global options, and an epilog printed as written.

    sections: title -> names of parameters, for a command with many; the others stand under "Options".
    """

    sections: Mapping[str, Sequence[str]] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        mine: dict[str, list[tuple[str, str]]] = {title: [] for title in (*self.sections, "Options")}
        titles = {name: title for title, names in self.sections.items() for name in names}
        everyones = []
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, GlobalOption):
                everyones.append(record)
            elif record is not None and not isinstance(parameter, click.Argument):
                mine[titles.get(parameter.name, "Options")].append(record)
        for title, records in mine.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        if everyones:
            with formatter.section("Global options (before or after the command)"):
                formatter.write_dl(everyones)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Writes the paragraphs; a table among them (behind a \\b, as click has it) is fitted line by line."""
        for paragraph in inspect.cleandoc(self.help or "").partition("\f")[0].split("\n\n"):  # type: ignore[attr-defined]
            formatter.write_paragraph()
            with formatter.indentation():
                if paragraph.startswith(_TABLE):
                    lines = (f"  {line}" for line in paragraph.splitlines()[1:])
                    formatter.write("{}\n".format("\n".join(_fitted(list(lines), formatter.width))))
                else:
                    formatter.write_text(paragraph)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        if self.epilog:  # type: ignore[attr-defined]
            lines = _fitted(self.epilog.strip().splitlines(), formatter.width)  # type: ignore[attr-defined]
            formatter.write("\n{}\n".format("\n".join(lines)))


def near(typed: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Returns known names of which `typed` is a typo or the beginning; a wrong guess would be worse than none."""
    names = [name for name in known if name.lstrip("-")[:1] == typed.lstrip("-")[:1]]
    whole = [name for name in names if len(typed.lstrip("-")) > 2 and name.startswith(typed)]
    return (whole or closest(typed, names, most, cutoff=_LIKE))[:most]


class RmgrCommand(_Help, click.Command):
    """A command with global options and examples."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["rmgr.args"] = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click leaves it out if a flag has a value; hints need it
            if not isinstance(error, click.NoSuchOption):
                raise
            close = near(error.option_name, error.possibilities or ())
            raise click.NoSuchOption(error.option_name, possibilities=close, ctx=error.ctx) from None


class RmgrGroup(_Help, click.Group):
    """A command with commands below it; alone it prints its help."""

    command_class = RmgrCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args or self.invoke_without_command else ["--help"])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists each command with its first sentence, wrapped, not cut off."""
        found = [(name, made) for name in self.list_commands(ctx) if (made := self.get_command(ctx, name)) and not made.hidden]
        if found:
            with formatter.section("Commands"):
                formatter.write_dl([(name, made.get_short_help_str(limit=10_000)) for name, made in found])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            close = near(args[0], known, 1)
            hint = f"did you mean: {ctx.command_path} {close[0]}" if close else f"known: {', '.join(known)}"
            raise with_hint(click.UsageError(f"there is no command {args[0]!r} below {ctx.command_path}", ctx), hint)
        return super().resolve_command(ctx, args)


class TableGroup(RmgrGroup):
    """A group whose commands stand in a table; a command's module is imported when it is used or its help is asked for.

    Args:
        table: name -> (module:function below `rmgr.cli`, summary).
    """

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = self._table.get(cmd_name)
        if entry is None:
            return None
        return load(entry[0])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names from the table, without importing a module."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from click.shell_completion import CompletionItem

        return [CompletionItem(name, help=summary) for name, (_, summary) in self._table.items() if name.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._table.items()])


def load(where: str) -> click.Command:
    """Imports a command by the place of its function, module:function below `rmgr.cli`."""
    module, _, function = where.partition(":")
    command: click.Command = getattr(importlib.import_module(f"rmgr.cli.{module}"), function)
    return command


def _epilog(examples: str, exits: str) -> str:
    text = "Examples:\n" + "\n".join(f"  {line}" for line in inspect.cleandoc(examples).splitlines())
    if exits:
        text += "\n\nExit codes:\n" + "\n".join(f"  {line}" for line in inspect.cleandoc(exits).splitlines())
    return text


def command(
    name: str,
    *,
    examples: str,
    exits: str = "",
    group: click.Group | None = None,
    settings: dict[str, Any] | None = None,
    sections: Mapping[str, Sequence[str]] | None = None,
    **attributes: Any,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command of a function whose first argument is the `Session`.

    Args:
        name: as typed. examples: lines for the help (required: every command has some). exits: meaning of its exit codes.
        group: the parent (`config` for `rmgr config show`), None for the top level. settings: click's context_settings.
        sections: see `_Help`.
    The function's docstring is the help; options are added with click's decorators below this one.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        attributes["context_settings"] = settings or {}
        made = click.command(name, cls=RmgrCommand, epilog=_epilog(examples, exits), **attributes)(_with_session(function))
        made.params += global_options()
        made.sections = sections or {}
        _add_completion(made)
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def _add_completion(made: click.Command) -> None:
    """Completes arguments and options that name things of the cluster with names from the cluster."""
    offers = dict.fromkeys(("selector", "selectors"), ids) | dict.fromkeys(("node", "nodes", "names"), nodes)
    offers["queue_names"] = queues
    for parameter in made.params:
        offer = queues if parameter.name == "queue" else offers.get(parameter.name or "")
        if offer is not None and (isinstance(parameter, click.Argument) or parameter.name == "queue"):
            parameter._custom_shell_complete = offer  # noqa: SLF001 - what click's own `shell_complete=` sets


def command_group(
    name: str, *, examples: str, exits: str = "", kind: type[RmgrGroup] = RmgrGroup, **attributes: Any
) -> Callable[[Callable[..., Any]], RmgrGroup]:
    """Makes a group (`rmgr config`, with `show`, `check`, ... below it) of a function that gets the `Session`."""

    def decorate(function: Callable[..., Any]) -> RmgrGroup:
        made = click.command(name, cls=kind, epilog=_epilog(examples, exits), **attributes)(_with_session(function, is_whole=False))
        made.params += global_options()
        return made

    return decorate


def _with_session(function: Callable[..., Any], *, is_whole: bool = True) -> Callable[..., Any]:
    """Passes the session to a command. is_whole: the command line ends here; below a group, a command's words are still to be parsed."""

    def call(**values: Any) -> Any:
        session = click.get_current_context().ensure_object(Session)
        session.is_parsed = is_whole
        return function(session, **values)

    call.__doc__ = function.__doc__
    call.__name__ = function.__name__
    call.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]  # where click's decorators leave them
    return call


# -- completion of ids, nodes and queues: a quick look at the cluster, nothing if it does not answer ---------------------------


def ids(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offers this user's submissions, newest first, with their names; `last` and `all`."""

    def look(session: Session) -> list[tuple[str, str]]:
        jobs = sorted(session.query().jobs(ended=True, user=session.me), key=lambda job: -job.id)
        return [(str(job.id), f"{job.name} {job.state}") for job in jobs] + [("last", "the newest"), ("all", "all of yours")]

    return _offer(look, incomplete)


def nodes(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offers names of nodes."""
    return _offer(lambda session: [(node.id, node.state) for node in session.query().known_nodes()], incomplete)


def queues(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offers names of queues."""
    return _offer(lambda session: [(queue.id, queue.state) for queue in session.query().queues()], incomplete)


def _offer(look: Callable[[Session], list[tuple[str, str]]], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    session = Session(timeout_s=_PATIENCE_S)
    session.is_quiet = True
    try:
        return [CompletionItem(name, help=told) for name, told in look(session) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a tab completes what it can, and never says why it cannot
        return []
    finally:
        session.close()
