"""`rmgr completion bash|zsh|fish`: the script that makes a shell complete commands, options, ids, nodes and queues."""

from __future__ import annotations

import sys

import click

from rmgr.cli.display.render import emit
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.words.params import one_of

_WHERE = {
    "bash": "source <(rmgr completion bash)        # in ~/.bashrc",
    "zsh": "source <(rmgr completion zsh)         # in ~/.zshrc, after compinit",
    "fish": "rmgr completion fish > ~/.config/fish/completions/rmgr.fish",
}


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
    if session.json:
        emit({"shell": shell, "script": script})
    else:
        sys.stdout.write(script)
