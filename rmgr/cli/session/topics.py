"""`rmgr help states|reasons|words`: what they mean. (`rmgr help COMMAND` is `rmgr COMMAND --help`: main.py sees to it.)"""

from __future__ import annotations

import itertools
import sys

import click

from rmgr.cli.display.render import emit, folded, paint
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.words.glossary import KINDS, TOPICS, heading
from rmgr.cli.words.params import nearest


@command("help", examples="rmgr help submit\nrmgr help states\nrmgr help reasons\nrmgr help words")
@click.argument("topic", metavar="COMMAND|states|reasons|words", required=False)
def help_topic(session: Session, topic: str | None) -> None:
    """Explains a command, or what states, reasons and other words mean."""
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
