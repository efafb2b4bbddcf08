"""Fetches jars from Maven Central into the user's cache, for servers that `rmgr dev` and the tests run.

    python -m rmgr.dev.jars cassandra-5.0            fetches them if they are missing, or the list has changed
    python -m rmgr.dev.jars --check cassandra-5.0    exit code 0 if they are there

The `*.pom.xml` beside this file list the jars. Needs only the standard library: set-up scripts run it before anything is installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rmgr.errors import Unavailable

#: Name -> title.
SETS = {"cassandra-5.0": "Cassandra 5.0", "zookeeper-3.9": "ZooKeeper 3.9"}
_STAMP = ".fetched"
_FETCH_S = 900.0
_MAVEN = "apt-get install maven, then the same command again"


def directory(name: str) -> Path:
    """Returns the directory for the jars of a set, fetched or not, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME") or Path.home()) / ".cache"
    return Path(cache) / "rmgr" / name


def command(name: str) -> str:
    """Returns the command that fetches a set."""
    return f"{sys.executable} -m rmgr.dev.jars {name}"


def is_fetched(name: str) -> bool:
    """Whether the jars of the current list are there."""
    with contextlib.suppress(OSError):
        return (directory(name) / _STAMP).read_text(encoding="utf-8").strip() == _sum(name)
    return False


def fetch(name: str, *, report: Callable[[str], None], timeout_s: float = _FETCH_S) -> Path:
    """Fetches a set with Maven unless it is there; returns its directory. Parallel calls all succeed.

    Args:
        report: called with one line before the download, which takes up to some minutes.
    Raises: Unavailable without Maven, if Maven fails, and after `timeout_s`; then the previous jars are still there.
    """
    target, what = directory(name), SETS[name]
    if is_fetched(name):
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"{what} is to be fetched into {target}, and Maven (mvn), which does that, is missing", hint=_MAVEN)
    report(f"fetching {what} from Maven Central into {target}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=target.parent))
    except OSError as error:
        msg = f"{target.parent} cannot be written: {error.strerror}"
        raise Unavailable(msg, hint="choose another cache: export XDG_CACHE_HOME=DIR") from error
    try:
        _run_maven(maven, name, draft, timeout_s)
        draft.chmod(0o755)
        (draft / _STAMP).write_text(_sum(name) + "\n", encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process was faster
            draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _pom(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.pom.xml")


def _sum(name: str) -> str:
    """Returns the checksum of the list, as cksum(1) prints it."""
    ended = subprocess.run(["cksum"], input=_pom(name).read_bytes(), capture_output=True, timeout=60, check=True)
    return ended.stdout.decode().strip()


def _run_maven(maven: str, name: str, draft: Path, timeout_s: float) -> None:
    # A directory of its own: Maven reads .mvn/ in its working directory and those above.
    options = [f"-DoutputDirectory={draft}", "-DincludeScope=runtime"]
    words = [maven, "-B", "-q", "-f", str(_pom(name)), "dependency:copy-dependencies", *options]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        ended = subprocess.run(words, cwd=draft, **pipes, timeout=timeout_s, text=True, errors="replace", check=False)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        msg = f"mvn has not fetched {SETS[name]} within {timeout_s:.0f} s"
        raise Unavailable(msg, hint=f"once this machine reaches Maven Central faster: {command(name)}") from None
    if ended.returncode:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", ended.stdout)  # Maven 3.8 resets colours although it was told to use none
        lines = [line.removeprefix("[ERROR]").strip() for line in plain.splitlines()]
        told = next((line for line in lines if line), f"exit code {ended.returncode}")
        msg = f"mvn could not fetch {SETS[name]}: {told[:400]}"
        raise Unavailable(msg, hint="is this machine online, and does ~/.m2/settings.xml name its proxy or mirror, if it needs one?")


def main(words: Sequence[str]) -> int:
    """Runs the command line; returns the exit code."""
    is_check = words[:1] == ["--check"]
    names = words[1:] if is_check else words
    if len(names) != 1 or names[0] not in SETS:
        sys.stderr.write(f"usage: python -m rmgr.dev.jars [--check] {' | '.join(SETS)}\n")
        return 2
    if is_check:
        return 0 if is_fetched(names[0]) else 1
    try:
        fetch(names[0], report=lambda line: print(line, file=sys.stderr, flush=True))
    except Unavailable as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
