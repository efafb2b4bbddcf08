"""Blocks of README.md and its guide run as printed on the cluster that they start (twice in tests/long.sh); others are parsed."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from rmgr.cli.main import cli
from tests.places import ROOT

#: In the order in which their blocks run.
DOCUMENTS = ("README.md", "rmgr/docs/guide.md", "rmgr/docs/slurm.md", "rmgr/docs/backup.md", "rmgr/docs/many.md", "deploy/README.md")
#: A block that contains this is not run, and why. Its `rmgr` commands must exist, with these options.
ELSEWHERE = {
    "deploy/quickstart.sh": "it installs packages, and takes a minute: tests/chaos/test_applications.py runs what it runs",
    "systemctl daemon-reload": "it installs services on a machine",
    "rmgr admin init --cluster": "it makes the authority of machines that are not here: tests/integration/install/test_machines.py",
    "rmgr admin add-node": "machines of a cluster of one's own: tests/integration/install/test_machines.py",
    "apt-get install zookeeperd": "it installs a service",
    "rmgr config check /etc/rmgr/config.toml": "it is about the files of another machine",
    "systemctl edit rmgr-": "services of another machine",
    "rmgr admin init --close-root": "ZooKeeper of a cluster of one's own: tests/integration/zookeeper/test_root.py",
    "/var/lib/zookeeper": "data of services of other machines",
    "docker compose": "containers: tests/compose/run.sh",
    "RMGR_GATEWAY=127.0.0.1:7071": "containers: tests/compose/run.sh",
    "rmgr sim sweep": "traces that are not here, and minutes of processor: tests/papers and tests/unit/sim",
    "rmgr dev --servers 2 --detach": "a second cluster beside the first: tests/integration/calls",
    'rmgr.call("linsolve"': "a gateway and servers of calls: tests/integration/calls",
    "rmgr admin revoke portal": "a user of another cluster: tests/integration/security/test_joining.py",
    "bad parameter": "its tasks fail, and all others end well: tests/integration/cli/test_rerun.py",
    "def energy(x, *, comm)": "64 processes with MPI: tests/integration/starter/test_starter_ranks.py",
}
#: What the examples need beside them. PROGRAM stands for a program of the reader's.
_PROGRAM = "#!/bin/sh\necho $*\n"
FILES = {
    "inputs.txt": "a\nb\n",
    "simulate": _PROGRAM,
    "step": _PROGRAM,
    "train": _PROGRAM,
    "script.sh": "#!/bin/sh\n#RMGR -J scripted\necho script\n",
    "job.sh": "#!/bin/sh\nrmgr run true\n",
}
#: Names that a Python example takes from its reader.
PRELUDE = "def simulate(x):\n    return x\n\n"


@dataclass(frozen=True)
class Block:
    """A fenced block. line: of its first line in its document."""

    document: str
    line: int
    language: str
    text: str

    @property
    def elsewhere(self) -> str:
        return next((why for words, why in ELSEWHERE.items() if words in self.text), "")

    def commands(self) -> list[str]:
        """Its lines; a here-document is one with its command."""
        found, end = [], ""
        for line in self.text.splitlines():
            if end:
                found[-1] += f"\n{line}"
                end = "" if line == end else end
            elif line.strip():
                found.append(line)
                here = re.search(r"<<'(\w+)'", line)
                end = here[1] if here else ""
        return found


def blocks() -> list[Block]:
    found: list[Block] = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        fenced = re.finditer(r"^```(sh|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        found += [Block(document, text.count("\n", 0, match.start()) + 2, match[1], match[2]) for match in fenced]
    return found


def rmgr_commands(text: str) -> list[list[str]]:
    """The words after `rmgr` of each such command of a line."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    found: list[list[str]] = []
    words: list[str] | None = None
    last = ""
    for word in lexer:
        last, before = word, last
        if word and set(word) <= set(";&|<>"):
            words = None
        elif words is not None:
            words.append(word)
        elif before not in {"-o", "-u"} and (word == "rmgr" or word.endswith("/bin/rmgr")):  # not the user of that name
            words = []
            found.append(words)
    return found


def check_exists(words: list[str]) -> None:
    """The command exists, and takes these options. Raises: click.UsageError."""
    command: click.Command = cli
    context = click.Context(cli, info_name="rmgr")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            raise click.UsageError(f"there is no command {words[0]}")
        command, words = found, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    command.make_parser(context).parse_args(list(words))


def test_every_reason_not_to_run_a_block_is_of_a_block() -> None:
    texts = [block.text for block in blocks()]
    assert [words for words in ELSEWHERE if not any(words in text for text in texts)] == []


@pytest.mark.parametrize("block", [block for block in blocks() if block.elsewhere], ids=lambda block: f"{block.document}-{block.line}")
def test_commands_for_other_machines_exist_with_their_options(block: Block) -> None:
    if block.language == "python":
        ast.parse(block.text)
        return
    for command in block.commands():
        for words in rmgr_commands(command):
            check_exists(words)


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_blocks_run_as_printed_and_again_on_the_same_machine(zookeeper_parts: None, tmp_path: Path, times: int) -> None:
    home, here = tmp_path / "home", tmp_path / "rmgr"
    for directory in (home, here, here / ".venv" / "bin"):
        directory.mkdir(parents=True)
    (here / "deploy").symlink_to(ROOT / "deploy")
    (here / ".venv" / "bin" / "activate").touch()  # the interpreter of the tests is active already
    (here / "rmgr").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmgr.cli.main "$@"\n')
    for name, text in FILES.items():
        (here / name).write_text(text)
    for name in ("rmgr", "simulate", "step", "train"):
        (here / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RMGR_", "XDG_"))}
    path = os.pathsep.join([str(here), str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    environment = {**kept, "HOME": str(home), "PATH": path, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}

    def run(block: Block, *words: str) -> str:
        done = subprocess.run(words, cwd=here, env=environment, capture_output=True, text=True, timeout=120, check=False)
        where = f"{block.document}, block at line {block.line}"
        assert done.returncode == 0, f"{where}: {words[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def settle(block: Block) -> None:
        """Waits for all that was submitted; none of it fails."""
        jobs = json.loads(run(block, "rmgr", "jobs", "-a", "--json"))["jobs"]
        run(block, "bash", "-c", f"rmgr wait --timeout 100 {' '.join(job['id'] for job in jobs if job['state'] != 'CANCELLED')}")

    ran = [block for block in blocks() if not block.elsewhere]
    assert "rmgr dev --detach" in ran[0].text
    try:
        for _ in range(times):
            for block in ran:
                if block.language == "python":
                    (here / "program.py").write_text(PRELUDE + block.text)
                    in_job = ["rmgr", "submit", "-q", "batch", "--wait", "--"] if "rmgr import checkpoint" in block.text else []
                    run(block, *in_job, sys.executable, str(here / "program.py"))
                for command in block.commands() if block.language == "sh" else ():
                    if command.startswith("rmgr dev stop"):
                        settle(block)
                    told = run(block, "bash", "-euo", "pipefail", "-c", command)
                    if "echo hello" in command:
                        assert told == "hello\n"
            settle(ran[-1])
            run(ran[-1], "rmgr", "dev", "stop")
    finally:
        subprocess.run(["rmgr", "dev", "stop"], cwd=here, env=environment, timeout=60, check=False, capture_output=True)
