"""Makes the directory of a placed job: its host file, and the programs that its script finds there."""

from __future__ import annotations

import shlex
from pathlib import Path

from rmgr.model.tasks.placing import Allocation
from rmgr.runner.host import home
from rmgr.runner.host.files import remove_tree

#: `rmgr` as the script of a job finds it, whatever its PATH was: without the time that the command line's library takes to load.
_PROGRAM = """import sys
sys.path.insert(0, {root!r})
from rmgr.runner.ranks.client import main
sys.exit(main(sys.argv[1:]))"""
_RMGR = '#!/bin/sh\nexec {python} -I -S -c {program} "$@"\n'
#: What mpirun takes for ssh.
_AGENT = '#!/bin/sh\nexec "${0%/*}/bin/rmgr" agent "$@"\n'


def furnish(place: Path, allocation: Allocation, *, mode: int) -> None:
    """Makes it, with its files; what stood there is gone. mode: of it and of its programs. Raises: OSError."""
    clear(place)
    place.mkdir(mode=mode)
    hosts, programs = place / "hosts", place / "bin"
    hosts.write_text("".join(f"{node} slots={count}\n" for node, count in allocation.shares))
    programs.mkdir()
    rmgr = _RMGR.format(python=shlex.quote(home.PYTHON), program=shlex.quote(_PROGRAM.format(root=str(home.ROOT))))
    for program, text in ((place / "rmgr-agent", _AGENT), (programs / "rmgr", rmgr)):
        program.write_text(text)
        program.chmod(mode)
    hosts.chmod(mode & 0o644)
    programs.chmod(mode)
    place.chmod(mode)


def clear(place: Path) -> None:
    """Nothing stands there any more. Raises: OSError."""
    if place.is_symlink():
        place.unlink()
    elif place.exists():
        remove_tree(place)
