"""Which tests a change can break."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.affected import affected

_FILES = {
    "rmgr/__init__.py": "",
    "rmgr/low.py": "X = 1",
    "rmgr/daemon.py": "from rmgr.low import X",
    "rmgr/other.py": "",
    "tests/unit/test_low.py": "import rmgr.low",
    "tests/unit/test_other.py": "def test():\n    from rmgr import other",
    "tests/harness/cluster.py": "WORDS = ['-m', 'rmgr.daemon']",
    "tests/integration/conftest.py": "from tests.harness.cluster import WORDS",
    "tests/integration/test_live.py": "",
    "tests/test_house.py": "",
}


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ("rmgr/low.py", {"unit/test_low.py", "integration/test_live.py", "test_house.py"}),
        ("rmgr/daemon.py", {"integration/test_live.py", "test_house.py"}),
        ("rmgr/other.py", {"unit/test_other.py", "test_house.py"}),
        ("rmgr/__init__.py", {"unit/test_low.py", "unit/test_other.py", "integration/test_live.py", "test_house.py"}),
        ("tests/unit/test_low.py", {"unit/test_low.py", "test_house.py"}),
        ("README.md", {"test_house.py"}),
    ],
)
def test_a_change_reaches_whoever_imports_or_starts_it(tmp_path: Path, changed: str, names: set[str]) -> None:
    for name, text in _FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert affected(tmp_path, [changed]) == {f"tests/{name}" for name in names}


def test_no_change_reaches_nothing(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_house.py").write_text("")
    assert affected(tmp_path, []) == frozenset()
