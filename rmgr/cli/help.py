"""`rmgr help states|reasons|words`, `rmgr completion SHELL`, `rmgr version`: commands that need no cluster.

main.py turns `rmgr help COMMAND` into `rmgr COMMAND --help`.
"""

from __future__ import annotations

import itertools
import platform
import sys

import click

from rmgr.cli.session import Session, command
from rmgr.cli.words.params import one_of, unknown

_WHERE = {
    "bash": "source <(rmgr completion bash)        # in ~/.bashrc",
    "zsh": "source <(rmgr completion zsh)         # in ~/.zshrc, after compinit",
    "fish": "rmgr completion fish > ~/.config/fish/completions/rmgr.fish",
}


@command("help", examples="rmgr help submit\nrmgr help states\nrmgr help reasons\nrmgr help OUT_OF_MEMORY")
@click.argument("topic", metavar="COMMAND|states|reasons|words|WORD", required=False)
def help_topic(session: Session, topic: str | None) -> None:
    """Explains a command, or what states, reasons and other words mean: all, or one such as POISON."""
    from rmgr.cli.display.render import emit, folded, paint
    from rmgr.cli.words.glossary import KINDS, TOPICS, heading

    found = {name: tuple(entry for entry in entries if topic in {name, entry.name}) for name, entries in TOPICS.items()}
    shown = {name: entries for name, entries in found.items() if entries}
    if not shown:
        raise unknown("topic", topic or "", [*TOPICS, *(entry.name for entries in TOPICS.values() for entry in entries)])
    if session.json:
        rows = {name: [entry._asdict() for entry in entries] for name, entries in shown.items()}
        emit(rows | ({"kinds": KINDS} if "reasons" in shown else {}))
        return
    out = sys.stdout
    width = max(len(entry.name) for entries in shown.values() for entry in entries) + 2
    by_kind = {name: itertools.groupby(entries, key=lambda entry: entry.kind) for name, entries in shown.items()}
    groups = [(heading(name, kind), [*group]) for name, kinds in by_kind.items() for kind, group in kinds]
    for number, (title, group) in enumerate(groups):
        out.write(("\n" if number else "") + paint(title, "bold", out) + "\n")
        for entry in group:
            out.write(f"  {entry.name:<{width}}{folded(entry.meaning, out, begin=width + 2, indent=width + 2)}\n")


@command("completion", examples="\n".join(_WHERE.values()))
@click.argument("shell", type=one_of("shell", _WHERE), metavar="bash|zsh|fish")
def completion(session: Session, shell: str) -> None:
    """Prints the completion script of a shell."""
    from click.shell_completion import get_completion_class

    from rmgr.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    maker = kind(cli, {}, "rmgr", "_RMGR_COMPLETE")
    script = maker.source_template % maker.source_vars()
    session.answer({"shell": shell, "script": script}, script)


@command("version", examples="rmgr version\nrmgr version --json")
def version(session: Session) -> None:
    """Prints the versions of rmgr, Python and the protocol; processes of one cluster may differ by one protocol version."""
    from rmgr.model.version import PROTOCOL, VERSION

    python = platform.python_version()
    document = {"version": VERSION, "python": python, "protocol": PROTOCOL}
    session.answer(document, f"rmgr {VERSION} (protocol {PROTOCOL}, Python {python})\n")
