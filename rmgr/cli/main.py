"""`rmgr`: the table of commands, each imported only when it is used, and the one place where errors become exit codes."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence

import click

from rmgr.cli import IS_PROGRAM
from rmgr.cli.session import Session, TableGroup, errors
from rmgr.cli.session.commands import global_options, load, near

#: section -> name -> (module:function, summary). Only existing commands are listed.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Work": {
        "submit": ("submit.submit:submit", "Submit a command or a script"),
        "run": ("submit.run:run", "Submit a command, stream its output, exit with its code"),
        "rerun": ("submit.rerun:rerun", "Submit stored work again, all of it or what failed"),
        "jobs": ("listing.work:jobs", "List live submissions, with -a ended ones too"),
        "tasks": ("listing.work:tasks", "List the tasks of a submission"),
        "show": ("listing.show:show", "Show everything known about a submission or a task"),
        "explain": ("listing.show:explain", "Explain why work waits, or how it ended"),
        "logs": ("listing.logs:logs", "Print the output of tasks, live or stored"),
        "wait": ("waiting:wait", "Wait for submissions and exit with their code"),
        "cancel": ("control.gate:cancel", "End queued and running work"),
        "hold": ("control.gate:hold", "Keep waiting work from starting"),
        "release": ("control.gate:release", "Let held work start again"),
        "update": ("control.gate:update", "Change waiting work, or the time limit of running work"),
        "checkpoint": ("control.operate:checkpoint", "Have a running job save its state"),
        "migrate": ("control.operate:migrate", "Move a running job to other nodes"),
        "history": ("listing.work:history", "List work that has ended"),
        "report": ("listing.report:report", "Report usage by user, account, queue or day; utilisation; waits"),
    },
    "Cluster": {
        "status": ("listing.cluster:status", "Show the leader, the health of ZooKeeper and store, and counts"),
        "nodes": ("listing.cluster:nodes", "List nodes, their state and resources"),
        "queues": ("listing.cluster:queues", "List queues, their limits and their work"),
        "limits": ("control.limits:limits", "Show the limits of one user, and how much is used"),
        "drain": ("control.operate:drain", "Let nodes finish their work and take no more"),
        "resume": ("control.operate:resume", "Let drained nodes take work again"),
        "policy": ("policy:policy", "Scheduling policies: list, show, set, check"),
        "config": ("control.settings:config", "Configuration and cluster settings: show, check, apply"),
    },
    "Calls": {
        "call": ("calls:call", "Call a function on the server that answers first"),
        "functions": ("calls:functions", "List the functions that servers offer"),
        "servers": ("calls:servers", "List servers of calls: load, speed, links"),
    },
    "Security": {
        "admin": ("admin:admin", "Set up and secure a cluster: init, init-store, add-node, revoke, ..."),
        "join": ("admin.members:join", "Make this machine a part of a secured cluster"),
    },
    "Data": {"store": ("store:store", "Values in the data store: ls, put, get, rm, share, du")},
    "Research": {"sim": ("sim:sim", "Policies on a virtual clock: traces in, schedules and measures out")},
    "Daemons": {
        "starter": ("daemons:starter", "Run work on this machine"),
        "watchdog": ("daemons:watchdog", "Watch over nodes and work"),
        "submitter": ("daemons:submitter", "Gateway for clients that cannot reach ZooKeeper"),
        "server": ("daemons:server", "Run named functions for calls through gateways"),
    },
    "This machine": {
        "dev": ("dev:dev", "A whole cluster on this machine"),
        "doctor": ("doctor:doctor", "Say what is wrong, and how to mend it"),
        "bench": ("bench:bench", "Measure: tasks, latency, shell, backlog, sim, pass"),
        "completion": ("help:completion", "Completion for bash, zsh or fish"),
        "help": ("help:help_topic", "Explain a command, or what states, reasons and words mean"),
        "version": ("help:version", "Versions of rmgr, Python and the protocol"),
    },
}

#: Inside a placed job: `run` starts its ranks, mpirun uses `agent` in place of ssh.
_INSIDE = {
    "ranks": ("submit.ranks:ranks", "One process a rank, on all nodes of this job"),
    "agent": ("submit.ranks:agent", "Run a command on a node of this job"),
}
#: Topics of `rmgr help` besides commands.
_TOPICS = {"states", "reasons", "words"}
#: Commands below one whose other words are ids.
BELOW = {("history", "purge"): "listing.work:purge"}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()} | _INSIDE
#: Words of command lines whose process lives long, or starts others; all other processes make a few thousand objects and end.
_LONG = {*SECTIONS["Daemons"], *SECTIONS["Research"], "dev", "bench", "drill"}
#: Objects before the collector looks for cycles (700 is Python's own): imports make hardly any cycles.
#: A daemon starts with this number, which saves 0.1 s, and sets its own after all imports (`runtime/interpreter.py`).
_GARBAGE = 50_000

_EPILOG = """\b
First steps:
  rmgr dev                             a cluster on this machine (Ctrl-C stops it)
  rmgr submit --wait -- echo hello     submit, wait, print the output
  rmgr submit --array 1-100 -- ./work.sh
  rmgr run -- make test                output as it comes, exit code of the command
  rmgr jobs; rmgr tasks last; rmgr logs -f last; rmgr explain last

Exit codes:
  run, submit --wait, wait, logs -f: the work's own code (of several the highest), 128+N on signal N,
  124 its time limit, 125 infrastructure, 127 no such command, 1 an exception,
  130 cancelled, or detached by Ctrl-C.
  Others: 0 ok, 1 failed or unhealthy, 2 usage or infeasible, 3 no such id, 4 permission,
  5 service unavailable, 6 --timeout ran out, 7 resource exhausted, 8 outcome unknown."""


class _Table(TableGroup):
    """The commands of all sections."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name == "run" and os.environ.get("RMGR_RANKS"):
            return name, self.get_command(ctx, "ranks"), args[1:]
        if (below := BELOW.get(tuple(args[:2]))) is not None:  # type: ignore[arg-type]  # of two words
            return " ".join(args[:2]), load(below), args[2:]
        if name not in COMMANDS and not name.startswith("-"):
            from rmgr.cli.words.foreign import advice_for, command_for

            meant = command_for(args)
            advice = "" if meant else advice_for(args)
            meant = meant or " ".join(f"rmgr {close}" for close in near(name, COMMANDS, 1))
            error = click.UsageError(f"there is no command {name!r}", ctx)
            raise errors.with_hint(error, advice or (f"did you mean: {meant}" if meant else "rmgr --help lists the commands"))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_, summary) in commands.items()], col_max=14)

cli = _Table(
    "rmgr",
    table=COMMANDS,
    params=global_options(),
    help="A fault-tolerant resource manager for clusters whose parts keep failing.",
    epilog=_EPILOG,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line as the console script and ends the process with an exit code of cli.md section 6."""
    if IS_PROGRAM and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    words = sys.argv[1:] if argv is None else argv
    is_brief = not _LONG.intersection(words)
    if is_brief or any(word in SECTIONS["Daemons"] for word in words):
        gc.set_threshold(_GARBAGE)
    _open_streams()
    code = errors.flush(run(words))
    if is_brief and nothing_is_left():
        os._exit(code)  # everything is closed and written: taking the interpreter down would cost 10 ms more
    sys.exit(code)


def _open_streams() -> None:
    """Replaces a closed stdin, stdout or stderr (`>&-`, some schedulers) by /dev/null: else the next socket would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115 - open to the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name that the terminal's encoding lacks must not hide the other rows


def nothing_is_left() -> bool:
    """Returns whether no thread, no connection of the library, no debugger or profiler needs Python's own exit."""
    mine = all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate())
    return mine and "rmgr.client.connection" not in sys.modules and sys.gettrace() is None and sys.getprofile() is None


def run(argv: Sequence[str]) -> int:
    """Carries out one command line and returns its exit code; reports errors on stderr or as JSON."""
    if "_RMGR_COMPLETE" in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "rmgr", "_RMGR_COMPLETE", os.environ["_RMGR_COMPLETE"])
    # People see our errors, and daemons log errors of gRPC alone: it has a line for each failed handshake, and strangers can fail as many
    # as they like. gRPC reads this at its import.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR" if {*SECTIONS["Daemons"], "dev"}.intersection(argv) else "NONE")
    session = Session()
    try:
        with cli.make_context("rmgr", _asked_for_help(argv), obj=session, max_content_width=_width(argv)) as ctx:
            cli.invoke(ctx)
    except BaseException as error:  # noqa: BLE001 - the rim: each kind is told apart in there and becomes an exit code
        error = errors.in_time(error, session)
        return errors.report(error, as_json=session.json or (not session.is_parsed and asked_for_json(argv)), verbose=session.verbose)
    finally:
        session.close()
    return 0


def _asked_for_help(argv: Sequence[str]) -> list[str]:
    """Rewrites `help [CMD]...` and `--version`, as other programs have them, to `[CMD]... --help` and `version`; topics stay."""
    words = list(argv)
    if words[:1] == ["help"] and not _is_topic(next((word for word in words[1:] if not word.startswith("-")), "")):
        return [*(word for word in words[1:] if not word.startswith("-")), "--help"]
    return ["version", *words[1:]] if words[:1] == ["--version"] else words


def _is_topic(word: str) -> bool:
    """Returns whether the word is a topic of `rmgr help`, nearly one, or a word that a topic explains."""
    if word in COMMANDS or not word:
        return False
    from rmgr.cli.words.glossary import TOPICS

    known = {entry.name for entries in TOPICS.values() for entry in entries}
    return word in known or word.isupper() or bool(near(word, _TOPICS, 1))


def _width(argv: Sequence[str]) -> int | None:
    """Returns the terminal's width, for help; None (click's 80) if no help is asked for: that import costs 7 ms."""
    if argv and not {"-h", "--help", "help"}.intersection(argv):
        return None
    import shutil

    return shutil.get_terminal_size().columns


def asked_for_json(argv: Sequence[str]) -> bool:
    """Returns whether `--json` is among the options, for errors that happen before options are parsed."""
    words = list(argv)
    return "--json" in (words[: words.index("--")] if "--" in words else words)


if __name__ == "__main__":
    main()
