"""The distribution has a name of its own: nobody is sent to the package of the public index that is called rmgr."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import rmgr
from rmgr.runtime.release import DISTRIBUTION
from tests.places import ROOT

_TEXTS = ("*.md", "*.py", "*.sh", "*.yml", "*.toml", "Dockerfile")
#: `pip install rmgr`, `pip install 'rmgr[mpi]'`, `pip install --upgrade rmgr`: what would fetch somebody else's package.
_FOREIGN = re.compile(r"""pip3? install(?: +--?[\w-]+)* +['"]?rmgr(?=[\s'"`\[=<>,.;)]|$)""", re.MULTILINE)


def test_what_would_fetch_another_package_is_found() -> None:
    for told in ("pip install rmgr", "pip install 'rmgr[mpi]'", 'pip install "rmgr[calls]" on', "`pip install --upgrade rmgr`"):
        assert _FOREIGN.search(told), told
    for told in ("pip install '.[mpi]'", "pip install 'rmgr-cluster[cassandra]'", "pip install .", "cd rmgr && pip install -e ."):
        assert not _FOREIGN.search(told), told


def test_nothing_tells_to_install_a_package_called_rmgr() -> None:
    places = [path for top in ("rmgr", "deploy", "tests", ".ci") for kind in _TEXTS for path in (ROOT / top).rglob(kind)]
    places += [path for kind in _TEXTS for path in ROOT.glob(kind)]
    found = [path for path in places if path.name != "test_distribution.py" and _FOREIGN.search(path.read_text("utf-8"))]
    assert [str(path.relative_to(ROOT)) for path in found] == []


def test_the_distribution_is_what_the_code_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["name"] == DISTRIBUTION != "rmgr"
    assert project["tool"]["flit"]["module"]["name"] == "rmgr"
    assert list(project["project"]["scripts"]) == ["rmgr"]
    assert rmgr.__version__ == metadata.version(DISTRIBUTION) == project["project"]["version"]
