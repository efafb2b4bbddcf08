"""`rmgr help states|reasons|words`, `rmgr completion SHELL`, `rmgr version`: commands that need no cluster.

main.py turns `rmgr help COMMAND` into `rmgr COMMAND --help`.
"""

from __future__ import annotations

import itertools
import platform
import sys

import click

from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.words.params import nearest, one_of

_WHERE = {
    "bash": "source <(rmgr completion bash)        # in ~/.bashrc",
    "zsh": "source <(rmgr completion zsh)         # in ~/.zshrc, after compinit",
    "fish": "rmgr completion fish > ~/.config/fish/completions/rmgr.fish",
}


@command("help", examples="rmgr help submit\nrmgr help states\nrmgr help reasons\nrmgr help words")
@click.argument("topic", metavar="COMMAND|states|reasons|words", required=False)
def help_topic(session: Session, topic: str | None) -> None:
    """Explains a command, or what states, reasons and other words mean."""
    from rmgr.cli.display.render import emit, folded, paint
    from rmgr.cli.words.glossary import KINDS, TOPICS, heading

    if topic not in TOPICS:
        raise nearest("topic", topic or "", TOPICS)
    entries, out = TOPICS[topic], sys.stdout
    if session.json:
        emit({topic: [entry._asdict() for entry in entries]} | ({"kinds": KINDS} if topic == "reasons" else {}))
        return
    width = max(len(entry.name) for entry in entries) + 2
    for number, (kind, group) in enumerate(itertools.groupby(entries, key=lambda entry: entry.kind)):
        out.write(("\n" if number else "") + paint(heading(topic, kind), "bold", out) + "\n")
        for entry in group:
            out.write(f"  {entry.name:<{width}}{folded(entry.meaning, out, begin=width + 2, indent=width + 2)}\n")


@command("completion", examples="\n".join(_WHERE.values()))
@click.argument("shell", type=one_of("shell", _WHERE), metavar="bash|zsh|fish")
def completion(session: Session, shell: str) -> None:
    """Prints the completion script of a shell."""
    from click.shell_completion import get_completion_class

    from rmgr.cli.display.render import emit
    from rmgr.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    maker = kind(cli, {}, "rmgr", "_RMGR_COMPLETE")
    script = maker.source_template % maker.source_vars()
    if session.json:
        emit({"shell": shell, "script": script})
    else:
        sys.stdout.write(script)


@command("version", examples="rmgr version\nrmgr version --json")
def version(session: Session) -> None:
    """Prints the versions of rmgr, Python and the protocol; processes of one cluster may differ by one protocol version."""
    from rmgr.model.base.version import PROTOCOL, VERSION

    python = platform.python_version()
    if session.json:
        from rmgr.cli.display.render import emit

        emit({"version": VERSION, "python": python, "protocol": PROTOCOL})
    else:
        sys.stdout.write(f"rmgr {VERSION} (protocol {PROTOCOL}, Python {python})\n")
