"""Starts one command and describes its end: program, environment, work directory, output files, exit. It never loads users' Python code."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import resource
import select
import signal
import time
from dataclasses import dataclass
from typing import NoReturn

from rmgr.model.frames import NO_OUTPUT, CommandBatch, CommandEnd, CommandItem, CommandStarted, Output
from rmgr.model.states import Reason
from rmgr.model.units import signal_name
from rmgr.runner.host import slurm
from rmgr.runner.host.contain import ControlGroup, state_of
from rmgr.runner.host.dispositions import PYTHONS_OWN
from rmgr.runner.host.environment import command_environment, shared_variables, umask_of
from rmgr.runner.host.files import blind_ns, identity_of, marks_of
from rmgr.runner.host.kernel import CLOCK, DISK_WAS_FULL, NODE_TROUBLE, is_full, oom_kills, prefer_for_oom
from rmgr.runner.host.outputs import open_named, open_output, settle, take, trim_path

#: How long a work directory is kept for a next command if none follows at once.
_SPARE_NS = 300_000_000
#: Work directories with at most this many plain files are emptied in place, others by `rm` in the background.
_FEW = 32
#: Removes a directory, even what a command has closed to itself.
REMOVE = 'rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwx -- "$1"; exec rm -rf -- "$1"; } 2>/dev/null'
_OOM_SCORE = 800
#: Most characters of PATH in the message that no program is found.
_PATH_CHARS = 200
#: Pause between two checks whether a program is stopped before it is executed, and must not be awaited.
_HANDSHAKE_S = 0.002
#: Ends that missing files may have caused.
_OWN = frozenset({Reason.EXIT_CODE, Reason.SIGNAL})
#: Signals ignored by the spawner; a command begins with their defaults.
_DEFAULT_SIGNALS = [*PYTHONS_OWN, signal.SIGINT]


class StartFailed(Exception):
    """A command that cannot be started. exit_code: 127 not found, 126 not executable, as in shells.

    reason: START_FAILED, or NODE_LOST if this node is in trouble (disk full, no memory, no processes).
    """

    def __init__(self, detail: str, exit_code: int, number: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.exit_code = exit_code
        self.reason = Reason.NODE_LOST if number in NODE_TROUBLE else Reason.START_FAILED


class DirectoryGone(Exception):
    """The slot's directory was removed: no command can be started in it any more."""


@dataclass(slots=True)
class RunningCommand:
    """A command that was started."""

    batch: CommandBatch
    item: CommandItem
    pid: int
    started_ns: int
    started_us: int
    directory: str
    owns_directory: bool
    out_path: str
    err_path: str
    out_fd: int  #: -1: the launcher's own file
    err_fd: int
    out_at: int  #: where its output begins in a file that is appended to
    err_at: int
    group: ControlGroup | None
    ooms: int
    program: str
    handshake: int  #: pipe for the error if it cannot be executed, not yet read; -1 = it is executed
    is_told: bool = False
    used_bytes: int = 0  #: memory of all its processes when it was killed for that

    def is_mixed(self, number: int) -> bool:
        """Returns whether other commands write into the file that is named for stdout (0) or stderr (1)."""
        return self.batch.is_mixed and self.batch.append[number]

    def started(self) -> CommandStarted:
        """For the Starter. A file that others write, too, is not told: it is no output of this one."""
        cap = self.batch.shape.output_cap
        out = "" if self.is_mixed(0) and self.item.out == self.out_path else self.out_path
        err = "" if self.is_mixed(1) and self.item.err == self.err_path else self.err_path
        return CommandStarted(self.item.seq, self.pid, self.started_us, self.directory, out, err, cap, self.out_at, self.err_at)


class Launcher:
    """Starts commands of one slot, one at a time."""

    def __init__(self, directory: str, node: str) -> None:
        self._directory = directory
        self._node = node
        self._paths = (os.path.join(directory, "stdout"), os.path.join(directory, "stderr"))
        self._fds = [open_output(path) for path in self._paths]
        self._identity = identity_of(directory)
        self._found: dict[tuple[str, str], str] = {}
        self._batch: CommandBatch | None = None
        self._base: dict[str, str] = {}
        self._stdin = os.devnull
        self._script: list[str] = []
        self._shared = dict(os.environ)  #: never changes
        self._spare = ""  #: an unused work directory
        self._spare_until: int | None = None  #: when it is removed (ns), None = a command may follow at once
        self._made: tuple[int, ...] = ()  #: its marks when it was made
        self._named = 0  #: number of its extended attributes when it was made
        self._aged_ns = math.inf  #: a command that begins later cannot change it without changing its marks
        self._at = directory  #: the current directory of this process
        self.removers: set[int] = set()  #: processes that remove work directories

    def start(self, batch: CommandBatch, item: CommandItem, group: ControlGroup | None) -> RunningCommand:
        """Starts one command. Raises: StartFailed (its work directory is removed again), DirectoryGone."""
        try:
            return self._start(batch, item, group)
        except StartFailed as error:
            self.check()
            if not os.path.lexists(self._stdin):
                error.detail, error.reason = f"its input was removed from node {self._node}", Reason.NODE_LOST
            raise

    def check(self) -> None:
        """Raises DirectoryGone if the slot's directory was removed. Cost: an lstat."""
        if self._identity is None or identity_of(self._directory) != self._identity:
            self._identity = None  # for ever, whatever is made there
            raise DirectoryGone

    def _start(self, batch: CommandBatch, item: CommandItem, group: ControlGroup | None) -> RunningCommand:
        if batch is not self._batch:
            try:
                self._prepare(batch)
            except OSError as error:
                raise StartFailed(f"script or input cannot be written on {self._node}: {error.strerror}", 126, error.errno) from None
        self._spare_until = None
        environ = command_environment(self._base, batch.shape, item)
        directory, owns = item.directory, not item.directory
        if owns:
            directory = self._spare or os.path.join(self._directory, f"t{item.seq}")
        opened: list[int] = []
        try:
            try:
                if owns and not self._spare:
                    os.mkdir(directory)
                    self._made = marks_of(directory)
                    self._named = _attributes_of(directory)
                    self._aged_ns = time.clock_gettime_ns(CLOCK) + blind_ns(self._made)
                self._spare = "" if owns else self._spare
                self._go(batch.cwd or directory)
                _name_directory(environ, batch.cwd or directory)
            except OSError as error:
                where = batch.cwd or directory
                failed = StartFailed(f"the work directory {where} cannot be used: {error.strerror}", 126, error.errno)
                if identity_of(directory) is None:  # not removed by its user, whose `cwd` may be wrong
                    failed.reason = Reason.NODE_LOST
                raise failed from None
            own_umask = os.umask(umask_of(batch.shape.environ))
            try:
                out_path, out = self._output(item.out, 0, batch, opened)
                same = item.err == item.out and out in opened
                err_path, err = (out_path, out) if same else self._output(item.err, 1, batch, opened)
                out_at = os.fstat(out).st_size if batch.append[0] and out in opened else 0
                err_at = os.fstat(err).st_size if batch.append[1] and err in opened else 0
                argv = self._argv(batch, item)
                ooms = oom_kills() if batch.shape.memory_bytes else 0
                started_ns, started_us = time.clock_gettime_ns(CLOCK), time.time_ns() // 1000
                pid, handshake = self._spawn(argv, environ, out, err, group, halts=batch.halts)
            finally:
                os.umask(own_umask)
        except StartFailed:
            for fd in opened:
                os.close(fd)
            self._leave(directory if owns and not batch.keep else "")
            raise
        if self._at != directory or not owns:  # the next command may have the same directory
            self._go_home()
        return RunningCommand(
            batch=batch,
            item=item,
            pid=pid,
            started_ns=started_ns,
            started_us=started_us,
            directory=directory,
            owns_directory=owns,
            out_path=out_path,
            err_path=err_path,
            out_fd=out if out in opened else -1,
            err_fd=err if err in opened and not same else -1,
            out_at=out_at,
            err_at=err_at,
            group=group,
            ooms=ooms,
            program=argv[0],
            handshake=handshake,
        )

    def failed(self, batch: CommandBatch, item: CommandItem, error: StartFailed) -> CommandEnd:
        """Returns the end of a command that never ran."""
        return CommandEnd(
            seq=item.seq,
            reason=error.reason,
            exit_code=error.exit_code if error.reason is Reason.START_FAILED else None,
            started_us=time.time_ns() // 1000,
            detail=error.detail,
            directory=item.directory if batch.keep else "",
        )

    def finish(self, run: RunningCommand, status: int, usage: resource.struct_rusage, *, reason: Reason, leftovers: int) -> CommandEnd:
        """Returns the end of a command whose processes are all dead.

        Args:
            reason: why it was killed, NONE = it ended by itself.
            leftovers: number of processes that it left behind, now killed.
        """
        elapsed_us = (time.clock_gettime_ns(CLOCK) - run.started_ns) // 1000
        code, signum = (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), 0)
        if reason is Reason.NONE:
            if self._had_oom(run, signum):
                reason, code, signum = Reason.OUT_OF_MEMORY, None, signal.SIGKILL
            elif signum:
                reason = Reason.SIGNAL
            elif code:
                reason = Reason.EXIT_CODE
        rss_kib = usage.ru_maxrss
        if reason is Reason.OUT_OF_MEMORY:  # what was compared with the limit: memory of all its processes
            rss_kib = max(rss_kib, run.used_bytes // 1024, run.group.peak_bytes() // 1024 if run.group is not None else 0)
        detail = ""
        if (number := _error_of_exec(run.handshake)) and reason is Reason.EXIT_CODE:
            failed = StartFailed(*self._why(run.program, OSError(number, os.strerror(number))), number)
            reason, detail, code = failed.reason, failed.detail, failed.exit_code if failed.reason is Reason.START_FAILED else None
        if reason in _OWN and not detail and is_full(self._directory):  # before any of its files is removed
            how = f"killed by {signal_name(signum)}" if signum else f"exit code {code}"
            reason, detail = Reason.NODE_LOST, f"{DISK_WAS_FULL} on node {self._node} when it ended ({how})"
        is_bereft = reason in _OWN and not self._has_files(run)
        if is_bereft:
            reason, detail = Reason.NODE_LOST, f"its files on node {self._node} were removed while it ran"
            self._batch = None
        cap = run.batch.shape.output_cap
        out = self._take(0, run, cap)
        err = NO_OUTPUT if run.err_path == run.out_path else self._take(1, run, cap)
        if is_bereft:
            self._reopen()
        keep = run.batch.keep or not run.owns_directory
        if keep:
            self._go_home()
        else:
            self._leave(run.directory, again=not leftovers, began_ns=run.started_ns)
        return CommandEnd(
            seq=run.item.seq,
            reason=reason,
            exit_code=code,
            signal=signum,
            started_us=run.started_us,
            elapsed_us=elapsed_us,
            cpu_us=int((usage.ru_utime + usage.ru_stime) * 1e6),
            max_rss_kib=rss_kib,
            out=out,
            err=err,
            detail=detail,
            leftovers=leftovers,
            directory=run.directory if keep else "",
        )

    # -- start -------------------------------------------------------------------------------------------------------

    def _prepare(self, batch: CommandBatch) -> None:
        """Makes once what all commands of a batch share."""
        self._batch = None
        self._base = self._shared | shared_variables(batch.shape, self._node)
        if slurm.FLAG in batch.shape.environ:
            self._base["PATH"] = slurm.furnish(self._directory) + os.pathsep + self._base.get("PATH", os.defpath)
        first = batch.items[0].seq
        self._stdin = batch.stdin_path or os.devnull
        self._script = []
        if batch.stdin and not batch.stdin_path:
            self._stdin = self._file(f"stdin.{first}", batch.stdin)
        if batch.script:
            path = self._file(f"script.{first}", batch.script)
            self._script = [*interpreter_of_script(batch.script), path]
        self._batch = batch

    def _file(self, name: str, data: bytes) -> str:
        path = os.path.join(self._directory, name)
        with open(path, "wb") as file:
            file.write(data)
        os.chmod(path, 0o755)  # noqa: S103 - a script is run by whoever its work belongs to
        return path

    def _output(self, path: str, number: int, batch: CommandBatch, opened: list[int]) -> tuple[str, int]:
        """Returns (path, descriptor) of an output stream: a private one if none is named, or if its directory neither exists nor has to."""
        if not path:
            return self._paths[number], self._fds[number]
        try:
            fd = open_named(path, append=batch.append[number])
        except OSError as error:
            why, code, directory = error.strerror, error.errno, os.path.dirname(path)
            if code in {errno.ENOENT, errno.ENOTDIR} and not os.path.isdir(directory):
                if not batch.named_only:
                    return self._paths[number], self._fds[number]
                why, code = f"there is no directory {directory}", 0  # the node is not to blame
            raise StartFailed(f"the output file {path} cannot be written on {self._node}: {why}", 126, code) from None
        opened.append(fd)
        return os.path.abspath(path), fd

    def _argv(self, batch: CommandBatch, item: CommandItem) -> list[str]:
        argv = list(item.argv or batch.argv)
        if self._script:
            return self._script + argv
        if not argv or not argv[0]:
            raise StartFailed("there is no command to run", 127)
        name = argv[0]
        if "/" in name:
            return argv
        search = self._base.get("PATH", os.defpath)
        found = self._found.get((name, search))
        if found is None or not os.access(found, os.X_OK):
            found = _find_program(name, search)
            if found is None:
                shown = search if len(search) <= _PATH_CHARS else f"{search[:_PATH_CHARS]}... ({search.count(os.pathsep) + 1} directories)"
                raise StartFailed(f"no program {name} on node {self._node} (PATH={shown})", 127)
            if os.path.isabs(found):
                self._found[name, search] = found
        return [found, *argv[1:]]

    def _has_files(self, run: RunningCommand) -> bool:
        """Returns whether the files that rmgr made for a command still stand. Cost: up to six lstats.

        That includes its output files: a cleaner still at work may have emptied the work directory, but not yet removed it.
        """
        own = [path for path in (self._stdin, *self._script[-1:], *self._paths) if path.startswith(self._directory)]
        return identity_of(self._directory) == self._identity and all(map(os.path.lexists, (run.directory, *own)))

    def _go_home(self) -> None:
        try:
            self._go(self._directory)
        except OSError:  # it was removed: `check` will notice
            os.chdir("/")

    def _go(self, directory: str) -> None:
        if self._at != directory:
            self._at = ""
            os.chdir(directory)
            self._at = directory

    def _spawn(
        self, argv: list[str], environ: dict[str, str], out: int, err: int, group: ControlGroup | None, *, halts: bool
    ) -> tuple[int, int]:
        """Returns (pid, its handshake if that was not awaited)."""
        try:
            if group is not None or halts or not hasattr(os, "posix_spawn"):
                return self._fork(argv, environ, out, err, group, halts=halts)
            try:
                return self._execute(argv, environ, out, err)
            except OSError as error:
                if error.errno != errno.ENOEXEC or not _is_text(argv[0]):
                    raise
                return self._execute(["/bin/sh", *argv], environ, out, err)  # a text without a #! line, as in shells
        except OSError as error:
            raise StartFailed(*self._why(argv[0], error), error.errno) from None
        except ValueError as error:
            raise StartFailed(f"the command line or environment cannot be used: {error}", 126) from None

    def _execute(self, argv: list[str], environ: dict[str, str], out: int, err: int) -> tuple[int, int]:
        actions = [(os.POSIX_SPAWN_OPEN, 0, self._stdin, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
        return os.posix_spawn(argv[0], argv, environ, file_actions=actions, setsid=True, setsigdef=_DEFAULT_SIGNALS, setsigmask=()), -1

    def _fork(
        self, argv: list[str], environ: dict[str, str], out: int, err: int, group: ControlGroup | None, *, halts: bool
    ) -> tuple[int, int]:
        """The slow start: into a cgroup of its own, or halted. A stopped process is not awaited: it is executed in its next turn."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._child(argv, environ, out, err, group, write, halts=halts)
        os.close(write)
        while not select.select([read], [], [], _HANDSHAKE_S)[0]:
            if state_of(pid) in "Tt" or (group is not None and group.is_frozen()):
                os.set_blocking(read, False)
                return pid, read
        if code := _error_of_exec(read):
            os.waitpid(pid, 0)
            raise OSError(code, os.strerror(code))
        return pid, -1

    def _child(
        self, argv: list[str], environ: dict[str, str], out: int, err: int, group: ControlGroup | None, write: int, *, halts: bool
    ) -> NoReturn:
        try:
            os.setsid()
            prefer_for_oom(_OOM_SCORE)
            signal.set_wakeup_fd(-1)
            for signum in (*_DEFAULT_SIGNALS, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(signum, signal.SIG_DFL)
            os.dup2(os.open(self._stdin, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.closerange(3, write)  # it may be stopped from now on, but the spawner's sockets must end with the spawner
            os.closerange(write + 1, os.sysconf("SC_OPEN_MAX"))
            if group is not None:
                group.enter()
            if halts:
                os.kill(os.getpid(), signal.SIGSTOP)
            try:
                os.execve(argv[0], argv, environ)  # noqa: S606 - that is the point
            except OSError as error:
                if error.errno != errno.ENOEXEC or not _is_text(argv[0]):
                    raise
                os.execve("/bin/sh", ["/bin/sh", *argv], environ)  # noqa: S606 - as `_spawn`, which may not hear of this one
        except OSError as error:
            os.write(write, str(error.errno).encode())
        finally:
            os._exit(126)

    def _why(self, name: str, error: OSError) -> tuple[str, int]:
        if error.errno == errno.ENOENT:
            if os.path.exists(name):
                return f"{name} names an interpreter that node {self._node} lacks{_named_interpreter(name)}", 127
            whose = ", which the first line of its script names" if self._script and name == self._script[0] else ""
            return f"no such program: {name} on node {self._node}{whose}", 127
        if error.errno in {errno.EACCES, errno.EPERM}:
            hint = f"it is not executable (chmod +x {name})" if os.path.isfile(name) else "it is not a file that can be run"
            return f"{name} cannot be run on node {self._node}: {hint}", 126
        if error.errno == errno.ENOEXEC:
            kind = os.uname().machine
            return f"{name} cannot be run on node {self._node} ({kind}): it is damaged, or for another kind of machine (file {name})", 126
        if error.errno == errno.E2BIG:
            return f"the arguments and environment of {name} are too long for the system", 126
        return f"{name} cannot be started on node {self._node}: {error.strerror}", 126

    # -- end ---------------------------------------------------------------------------------------------------------

    def _had_oom(self, run: RunningCommand, signum: int) -> bool:
        """The kernel has ended it for lack of memory, or some process of it: a script that goes on then has not done what it was to do."""
        if run.group is not None and run.group.limits_memory:
            return run.group.had_oom()
        return signum == signal.SIGKILL and bool(run.batch.shape.memory_bytes) and oom_kills() > run.ooms

    def trim(self, run: RunningCommand) -> bool:
        """Gives back the middle of its output where it is above its cap; True: some was. What its user has named stays whole."""
        is_capped = False
        for path in (run.out_path, run.err_path):
            if path in self._paths:
                is_capped = trim_path(path, run.batch.shape.output_cap) or is_capped
        return is_capped

    def _take(self, number: int, run: RunningCommand, cap: int) -> Output:
        path, own_fd, at = ((run.out_path, run.out_fd, run.out_at), (run.err_path, run.err_fd, run.err_at))[number]
        final = os.path.join(self._directory, f"{run.item.seq}.{('out', 'err')[number]}")
        try:
            if own_fd >= 0:
                try:
                    return settle(own_fd, path, at, final, cap) if not run.is_mixed(number) else NO_OUTPUT
                finally:
                    os.close(own_fd)
            if not os.lseek(self._fds[number], 0, os.SEEK_END):
                return NO_OUTPUT
            output = take(self._fds[number], path, final, cap)
            if output.path:
                os.close(self._fds[number])
                self._fds[number] = open_output(path)
            return output
        except OSError as error:
            self._reopen()
            return Output(data=f"[rmgr: the output is lost: {error}]\n".encode())

    def _reopen(self) -> None:
        """Makes removed output files again, so that the next command is not blamed for their absence."""
        for number, path in enumerate(self._paths):
            if not os.path.lexists(path):
                with contextlib.suppress(OSError):  # the directory is gone: `check` will notice
                    fd = open_output(path)
                    os.close(self._fds[number])
                    self._fds[number] = fd

    def tidy(self, now: int) -> None:
        """Removes the spare work directory if no command follows for a moment."""
        if not self._spare:
            return
        if self._spare_until is None:
            self._spare_until = now + _SPARE_NS
        elif now >= self._spare_until:
            directory, self._spare, self._spare_until = self._spare, "", None
            self._leave(directory)

    @property
    def tidies_ns(self) -> int | None:
        """When `tidy` must be called again, None if not needed."""
        return self._spare_until

    def _leave(self, directory: str, *, again: bool = False, began_ns: float = -math.inf) -> None:
        """Leaves and removes a work directory; a big one in the background.

        again: the next command may have it if it is unchanged. began_ns: start of the command that had it.
        """
        if directory and again and not self._spare:
            with contextlib.suppress(OSError):
                aged = began_ns > self._aged_ns
                if marks_of(directory) == self._made and (aged or (_attributes_of(directory) == self._named and not os.listdir(directory))):
                    self._spare = directory
                    return
        self._go_home()
        if not directory:
            return
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return
        except OSError:
            self.remove(directory)

    def remove(self, directory: str) -> None:
        """Removes a directory that is not empty: at once if it holds a few plain files, else by a process of its own."""
        with contextlib.suppress(OSError):
            with os.scandir(directory) as entries:
                few = list(itertools.islice(entries, _FEW + 1))
            if len(few) <= _FEW and not any(entry.is_dir(follow_symlinks=False) for entry in few):
                for entry in few:
                    os.unlink(entry.path)
                os.rmdir(directory)
                return
        shell = _find_program("sh", os.defpath)
        if shell is not None:
            with contextlib.suppress(OSError):
                self.removers.add(os.posix_spawn(shell, [shell, "-c", REMOVE, "rm", directory], os.environ, setsid=True))


def _name_directory(environ: dict[str, str], directory: str) -> None:
    """Sets PWD to the directory as it was asked for, with its symbolic links; unsets PWD for a relative name."""
    environ.pop("PWD", None)
    environ.pop("OLDPWD", None)
    if os.path.isabs(directory):
        environ["PWD"] = directory


def _error_of_exec(handshake: int) -> int:
    """Returns the error of a program that could not be executed, 0 if none is known. Closes the handshake."""
    if handshake < 0:
        return 0
    with os.fdopen(handshake, "rb", buffering=0) as pipe:
        return int(pipe.read(16) or 0)


def _attributes_of(directory: str) -> int:
    """Returns the number of its extended attributes; 0 on a file system without."""
    with contextlib.suppress(OSError):
        return len(os.listxattr(directory, follow_symlinks=False)) if hasattr(os, "listxattr") else 0
    return 0


def interpreter_of_script(script: bytes) -> list[str]:
    """Returns what runs a script: its #! line (so that the file need not be executable), else /bin/sh."""
    first = os.fsdecode(script.split(b"\n", 1)[0].rstrip(b"\r"))
    if not first.startswith("#!"):
        return ["/bin/sh"]
    words = first[2:].strip().split(None, 1)
    return words or ["/bin/sh"]


def _named_interpreter(path: str) -> str:
    """What the first line of a script names, and what is wrong with it, as the end of a sentence; "" where nothing can be said."""
    try:
        with open(path, "rb") as file:
            first = file.read(256).split(b"\n", 1)[0]
    except OSError:
        return ""
    if not first.startswith(b"#!"):
        return ""
    if first.endswith(b"\r"):
        return f": its lines end as those of DOS do (sed -i 's/\\r$//' {path})"
    return f": {first[2:].decode('utf-8', 'replace').strip()}"


def _is_text(path: str) -> bool:
    """What shells take for a script without #! line: its beginning has no NUL, which a program for another machine has."""
    try:
        with open(path, "rb") as file:
            return b"\0" not in file.read(256)
    except OSError:
        return True


def _find_program(name: str, path: str) -> str | None:
    for directory in path.split(os.pathsep):
        candidate = os.path.join(directory or ".", name)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    return None
