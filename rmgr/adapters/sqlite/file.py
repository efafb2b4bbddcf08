"""The file below the SQLite store: creates it, checks that it is ours, opens connections, explains errors."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sqlite3
import threading
import time
from pathlib import Path

from rmgr.adapters.store_rules import CallDeadline
from rmgr.errors import RmgrError, StoreUnavailable

#: Version of the tables (`PRAGMA user_version`); others are refused.
SCHEMA_VERSION = 2
#: "rmgr" in ASCII (`PRAGMA application_id`), so that a database of another program is not touched.
APPLICATION_ID = 0x726D6772
#: Page size of a new file; existing ones keep theirs. Four times SQLite's default: each written page takes four system calls on its way
#: through the log, and a MiB of chunks then takes 2.7 ms of the processor instead of 4.0; a single small row takes 0.04 ms more.
PAGE_BYTES = 16 * 1024

# Values of one chunk are part of their manifest row (`inline`); larger ones lie in files.
# sqlite/rows.py keeps `manifest` and `unreferenced` right.
_SCHEMA = """
CREATE TABLE info (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE manifest (
    key TEXT PRIMARY KEY, size INTEGER NOT NULL, sha256 BLOB NOT NULL, encoding TEXT NOT NULL, expires_ms INTEGER,
    generation INTEGER NOT NULL, chunks INTEGER NOT NULL, inline BLOB
) WITHOUT ROWID;
CREATE INDEX manifest_expiry ON manifest (expires_ms) WHERE expires_ms IS NOT NULL;
CREATE TABLE unreferenced (generation INTEGER PRIMARY KEY, since_ms INTEGER NOT NULL);
CREATE TRIGGER manifest_replaced AFTER UPDATE ON manifest WHEN OLD.chunks > 0 BEGIN
    INSERT INTO unreferenced VALUES (OLD.generation, CAST(strftime('%s', 'now') AS INTEGER) * 1000);
END;
CREATE TRIGGER manifest_deleted AFTER DELETE ON manifest WHEN OLD.chunks > 0 BEGIN
    INSERT INTO unreferenced VALUES (OLD.generation, CAST(strftime('%s', 'now') AS INTEGER) * 1000);
END;
INSERT INTO info VALUES ('generation', 0);
"""

# WAL needs shared memory and POSIX locks that work: neither does between the machines of a network file system.
_NETWORK_FILE_SYSTEMS = re.compile(
    r"^(nfs\d?|cifs|smb\w*|ncpfs|afs|ceph|lustre|gpfs|beegfs\w*|pvfs2|orangefs|glusterfs|panfs|gfs2|ocfs2"
    r"|fuse\.(sshfs|glusterfs|ceph|ceph-fuse|s3fs|goofys|gcsfuse|rclone|juicefs|cvmfs|davfs2?|moosefs|mfs))$"
)

#: SQLite's error -> what it means for a store, and what helps.
_LOCKED = ("another program holds it locked", "end the program that has it open (fuser)")
_EXPLAINED = {
    sqlite3.SQLITE_FULL: ("no space left on the disk", "free some space; writes go on by themselves then"),
    sqlite3.SQLITE_CORRUPT: ("the file is damaged ({error})", "restore it from a copy, or start with a new one"),
    sqlite3.SQLITE_READONLY: ("it is read-only", "check the owner and mode of the file and of its directory"),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "check that it exists and may be read and written"),
    sqlite3.SQLITE_INTERRUPT: ("the deadline passed", "try again with a longer timeout"),
}

# Closing any descriptor of a file drops the process's POSIX locks on it, SQLite's too (sqlite.org/howtocorrupt.html, 2.2):
# so this module opens a store file only to create it, and never while another thread may be opening it.
_CREATING = threading.Lock()


class StoreFile:
    """One SQLite store on disk: `path`, and `path + ".lock"`, the side file whose `flock` is held around every write."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True, timeout_s: float = 10.0) -> None:
        """Opens the store, and creates it unless `create` is False.

        Raises: `StoreUnavailable` if the file is missing, unreadable, on a network file system, not a store of this
        version, or not available within `timeout_s`.
        """
        self.path = Path(path).expanduser().resolve()  # one side file, whatever links lead here
        self.lock_path = self.path.with_name(self.path.name + ".lock")
        self.values_path = self.path.with_name(self.path.name + ".values")  #: directory of large values, made with the first
        deadline = CallDeadline(timeout_s)
        self._check_place(create=create)
        if create:
            self._create_file()
        self.inode = self._stat()
        self.lock_fd = self._open_lock()
        try:
            self._ensure_schema(deadline)
        except BaseException:
            self.close()
            raise

    def connect(self, *, writes: bool = False) -> sqlite3.Connection:
        """Returns a new connection in autocommit mode. Raises: `StoreUnavailable`."""
        try:
            connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode=rw", uri=True, timeout=5.0, isolation_level=None, check_same_thread=False, cached_statements=64
            )
        except sqlite3.Error as error:
            raise self.explain(error, "open") from error
        try:
            connection.execute("PRAGMA synchronous=FULL" if writes else "PRAGMA query_only=ON")
            connection.execute("PRAGMA temp_store=MEMORY")  # a full /tmp, where SQLite would keep journals of statements, stops nobody
            if writes:
                connection.execute("PRAGMA journal_size_limit=67108864")
        except sqlite3.Error as error:
            connection.close()
            raise self.explain(error, "open") from error
        return connection

    def check_in_place(self) -> None:
        """Raises `StoreUnavailable` if the file was removed or replaced: writes would go into a file that nobody can open."""
        if self._stat() != self.inode:
            raise StoreUnavailable(
                f"the store file {self.path} was replaced while it was in use",
                hint="restart the processes of this cluster on the right file",
            )

    def close(self) -> None:
        """Closes the lock's descriptor. Idempotent."""
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
            self.lock_fd = -1

    def explain(self, error: sqlite3.Error, doing: str) -> RmgrError:
        """Returns our error for an error of SQLite; `doing` completes "cannot ... the store"."""
        primary = _primary(error)
        if primary == sqlite3.SQLITE_NOTADB:
            return StoreUnavailable(
                f"{self.path} is not a database file", hint="name a file that does not exist yet, or a store made by rmgr"
            )
        name = getattr(error, "sqlite_errorname", "unknown error")
        why, hint = _EXPLAINED.get(primary, ("{error} ({name})", "see `rmgr doctor`"))
        return StoreUnavailable(f"cannot {doing} the store {self.path}: {why.format(error=error, name=name)}", hint=hint)

    # -- opening ------------------------------------------------------------------------------------------------------

    def _check_place(self, *, create: bool) -> None:
        folder = self.path.parent
        if not folder.is_dir():
            raise StoreUnavailable(f"cannot open the store {self.path}: there is no directory {folder}", hint=f"mkdir -p {folder}")
        if self.path.is_dir():
            raise StoreUnavailable(f"cannot open the store {self.path}: it is a directory", hint="name a file in it, e.g. store.db")
        if not create and not self.path.exists():
            raise StoreUnavailable(
                f"there is no store {self.path}", hint="is the cluster running? `rmgr dev` starts one and makes its store"
            )
        kind = file_system_of(folder)
        if _NETWORK_FILE_SYSTEMS.match(kind):
            raise StoreUnavailable(
                f"the store {self.path} lies on a network file system ({kind}), where SQLite loses data",
                hint="put it on a local disk; for several machines use a cassandra:// store",
            )

    def _create_file(self) -> None:
        with _CREATING:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                return
            except OSError as error:
                raise self.os_error(error, "create") from error

    def _open_lock(self) -> int:
        try:
            return os.open(self.lock_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self.os_error(error, "lock") from error

    def _stat(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except OSError as error:
            raise self.os_error(error, "find") from error
        return found.st_dev, found.st_ino

    def os_error(self, error: OSError, doing: str) -> StoreUnavailable:
        """Returns our error for one of the file system; `doing` as for `explain`."""
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return StoreUnavailable(f"cannot {doing} the store {self.path}: no space left on the disk", hint="free some space")
        return StoreUnavailable(
            f"cannot {doing} the store {self.path}: {error.strerror}", hint="check the owner and mode of the file and of its directory"
        )

    def _ensure_schema(self, deadline: CallDeadline) -> None:
        connection = self.connect(writes=True)
        try:
            if self._verify(connection):
                return
            self._lock(deadline)
            try:
                if not self._verify(connection):  # no other process made the tables while we waited
                    connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
                    (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
                    if mode != "wal":
                        raise StoreUnavailable(
                            f"the store {self.path} cannot keep a write-ahead log ({mode}): its file system lacks shared memory",
                            hint="put it on a local disk",
                        )
                    connection.executescript(
                        f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA application_id={APPLICATION_ID};PRAGMA user_version={SCHEMA_VERSION};COMMIT;"
                    )
            finally:
                fcntl.flock(self.lock_fd, fcntl.LOCK_UN)
        except sqlite3.Error as error:
            raise self.explain(error, "open") from error
        finally:
            connection.close()

    def _verify(self, connection: sqlite3.Connection) -> bool:
        """Returns True for a store that we understand, False for an empty file. Raises `StoreUnavailable` for anything else."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application == APPLICATION_ID:
            if version != SCHEMA_VERSION:
                raise StoreUnavailable(
                    f"the store {self.path} has schema version {version}, this rmgr understands version {SCHEMA_VERSION}",
                    hint="use the rmgr that made it, or start with a new store",
                )
            return True
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            raise StoreUnavailable(
                f"{self.path} is a database of another program, not a store of rmgr", hint="name a file that does not exist yet"
            )
        return False

    def _lock(self, deadline: CallDeadline) -> None:
        while True:
            try:
                fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                deadline.check("let go of its write lock")
                time.sleep(0.005)


def is_corrupt(error: sqlite3.Error) -> bool:
    """Returns whether SQLite found the file's own structure damaged."""
    return _primary(error) == sqlite3.SQLITE_CORRUPT


def is_busy(error: sqlite3.Error) -> bool:
    """Returns whether another program held SQLite's own lock too long."""
    return _primary(error) == sqlite3.SQLITE_BUSY


def _primary(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def file_system_of(folder: Path) -> str:
    """Returns the type of the file system that holds `folder`, as in /proc/self/mountinfo, or "" if that does not exist (macOS)."""
    try:
        device = folder.stat().st_dev
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    kind = ""
    for line in lines:
        left, _, right = line.partition(" - ")
        if left.split(" ")[2:3] == [wanted]:
            kind = right.split(" ", 1)[0]
    return kind
