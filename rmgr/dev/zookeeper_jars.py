"""Finds Java and ZooKeeper's jars on this machine: Debian's 3.8, or the 3.9 that `rmgr.dev.jars` has fetched.

RMGR_ZOOKEEPER_LIB chooses for every server whose maker did not: a directory of jars, or one of `RELEASES`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rmgr.dev import jars
from rmgr.errors import Unavailable

#: Debian's package, and the one from Maven Central (zookeeper-3.9.pom.xml).
RELEASES = ("3.8", "3.9")
FETCHED = "zookeeper-3.9"
DEBIAN_JARS = ("zookeeper.jar", "zookeeper-jute.jar", "slf4j-api.jar", "slf4j-simple.jar", "netty-all.jar", "netty-codec.jar")
_NEEDED = DEBIAN_JARS[:4]
_DEBIAN_DIR = Path("/usr/share/java")
HOW_TO_INSTALL = "apt-get install --no-install-recommends default-jre-headless libzookeeper-java libnetty-java libslf4j-java"


def missing_parts(release: str = "") -> str | None:
    """What is missing to run a server (of this release) here, None when it can run."""
    if java() is None:
        return "no `java` on PATH nor in JAVA_HOME"
    try:
        class_path(release)
    except Unavailable as error:
        return error.message
    return None


def java() -> str | None:
    """The Java program: JAVA_HOME's, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def fetched_dir() -> Path:
    """Where the jars of 3.9 are kept: the user's cache."""
    return jars.directory(FETCHED)


def class_path(release: str = "") -> str:
    """Java's class path for the server.

    Args:
        release: one of `RELEASES`; "" = what RMGR_ZOOKEEPER_LIB says, else Debian's, else the fetched one.
    Raises: Unavailable when jars are missing.
    """
    chosen = release or os.environ.get("RMGR_ZOOKEEPER_LIB", "")
    if chosen == "3.8":
        return _debian()
    if chosen == "3.9":
        return _directory(fetched_dir(), f"type: {jars.command(FETCHED)}")
    if chosen:
        return _directory(Path(chosen), "a directory with ZooKeeper's jar and all its dependencies is meant", "RMGR_ZOOKEEPER_LIB=")
    try:
        return _debian()
    except Unavailable:
        if any(fetched_dir().glob("zookeeper*.jar")):
            return str(fetched_dir() / "*")
        raise


def _directory(where: Path, hint: str, name: str = "") -> str:
    if not any(where.glob("zookeeper*.jar")):
        msg = f"{name}{where} holds no zookeeper*.jar"
        raise Unavailable(msg, hint=hint)
    return str(where / "*")


def _debian() -> str:
    lacking = [name for name in _NEEDED if not (_DEBIAN_DIR / name).exists()]
    if lacking:
        msg = f"ZooKeeper's jars are missing in {_DEBIAN_DIR}: {', '.join(lacking)}"
        elsewhere = f"not on Debian: {jars.command(FETCHED)}, or RMGR_ZOOKEEPER_LIB=DIR with its jars"
        raise Unavailable(msg, hint=f"{HOW_TO_INSTALL}; {elsewhere}")
    return ":".join(str(_DEBIAN_DIR / name) for name in DEBIAN_JARS if (_DEBIAN_DIR / name).exists())
