"""Turns errors into a message and a hint on stderr, or `{"error": ...}` on stdout, and an exit code (cli.md sections 5, 6)."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import click

from rmgr.client.reach import Reach
from rmgr.errors import DeadlineExceeded, RmgrError, SubmitUnknown, Unavailable
from rmgr.model.units import signal_name

#: Exit code when the reader has gone (`rmgr jobs | head -1`), as the shell reports SIGPIPE.
BROKEN_PIPE = 141
INTERRUPTED = 130
#: Most characters of a message or a hint.
_MOST_TOLD = 1500
#: What click says of the number of a job where none belongs.
_EXTRA_JOB = re.compile(r"Got unexpected extra argument \((\d+(?:_\d+)?)\)")
#: How long an outage was waited for, as messages say it.
_WAITED = re.compile(r" within (?:[0-9.]+(?:ms|[dhms]))+(?=[:;,]|$)")


class WorkEnded(Exception):
    """Ends a command that has already reported everything, with this exit code (mostly the work's own)."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP has come (`timeout 60 rmgr run ...`, a closed terminal): a wait detaches, as after one Ctrl-C."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.exit_code = 128 + signum

    def __str__(self) -> str:
        return signal_name(self.exit_code - 128)


def in_time(error: BaseException, reach: Reach) -> BaseException:
    """Turns an outage that lasted until the end of `--timeout` into DeadlineExceeded: exit code 6 in every command, whatever it awaited."""
    if not isinstance(error, Unavailable) or not reach.is_over():
        return error
    message = _WAITED.sub("", error.message)  # less than `--timeout`, of which a part was used before: two times confuse
    return DeadlineExceeded(f"{reach.too_late()}: {message}", hint=error.hint)


def with_hint(error: click.ClickException, hint: str) -> click.ClickException:
    """Returns a click error that carries a hint."""
    error.rmgr_hint = hint  # type: ignore[attr-defined]
    return error


def report(error: BaseException, *, as_json: bool, verbose: int = 0) -> int:
    """Reports what happened and returns the exit code. Ends of commands (`WorkEnded`, click's Exit) report nothing."""
    match error:
        case WorkEnded():
            return error.exit_code
        case click.exceptions.Exit():
            return error.exit_code
        case SystemExit():
            return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        case BrokenPipeError():
            return BROKEN_PIPE
        case Terminated():
            _print_error(f"interrupted by {error}", "")
            return error.exit_code
        case KeyboardInterrupt() | click.Abort():
            _print_error("interrupted", "")
            return INTERRUPTED
        case RmgrError():
            code, message, hint, exit_code = error.code, error.message, error.hint, error.exit_code
        case click.UsageError():
            code, message, hint, exit_code = "USAGE", error.format_message(), hint_of(error), 2
        case click.ClickException():
            code, message, hint, exit_code = "USAGE", error.format_message(), hint_of(error), 2
        case UnicodeEncodeError() if "\udc80" <= str(error.object)[error.start] <= "\udcff":  # bytes from argv or the environment
            code, message, exit_code = "USAGE", f"{_excerpt(error)} is not valid UTF-8; rmgr records text", 2
            hint = "put such bytes into a script or a file (--upload, --each-line, stdin); locale -a"
        case OSError(errno=errno.ENAMETOOLONG):
            code, message, hint, exit_code = "USAGE", _os_message(error), "name an existing file, or a shorter name", 2
        case FileNotFoundError() if _is_directory_gone():
            code, message, exit_code = "USAGE", f"the directory that this command was started in has been removed{_removed_directory()}", 2
            hint = "cd to one that exists"
        case OSError(errno=errno.ENOSPC, filename=None):
            code, message, hint, exit_code = "INTERNAL", f"the output could not be written: {error.strerror}", "", 1
        case OSError():
            code, message, hint, exit_code = "INTERNAL", _os_message(error), "", 1
        case _:
            code, message, exit_code = "INTERNAL", f"{type(error).__name__}: {error}", 1
            hint = "this is a defect of rmgr; -v prints where it happened"
    message, hint = _clipped(message), _clipped(hint)
    token = error.token if isinstance(error, SubmitUnknown) else ""
    if as_json:
        import json

        told = {"code": code, "message": message, "hint": hint}
        try:
            sys.stdout.write(json.dumps({"schema": "rmgr/1", "error": told | ({"token": token} if token else {})}) + "\n")
            sys.stdout.flush()
        except OSError:  # a full disk behind stdout: report it to people at least
            _print_error(message, hint)
    else:
        _print_error(message, hint or (f"send it again, safely: --token {token}" if token else ""))
    if verbose and not isinstance(error, click.ClickException):
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, OSError):
        try:
            sys.stdout.flush()
        except OSError:  # the error that is reported
            _drop(sys.stdout)
    return exit_code


@contextmanager
def told_anyway(done: str) -> Iterator[None]:
    """Tells on stderr what has been done, if stdout cannot be written: otherwise nobody learns the id of what was submitted."""
    try:
        yield
        sys.stdout.flush()
    except OSError:
        _print_error(done, "")
        raise


def flush(code: int) -> int:
    """Flushes stdout and stderr and returns the exit code; a reader that has gone causes no traceback at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            _drop(stream)
            is_gone = isinstance(error, BrokenPipeError)
            if not is_gone and stream is sys.stdout:  # a full disk behind stdout
                _print_error(f"the output could not be written: {error.strerror}", "")
            code = code or (BROKEN_PIPE if is_gone else 1)
    return code


def _drop(stream: TextIO) -> None:
    """Sends what `stream` still holds to nobody: otherwise Python would try again at exit, and end with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print_error(message: str, hint: str) -> None:
    from rmgr.cli.display.render import folded, paint, printable

    if not sys.stdout.closed:
        with suppress(OSError):  # `flush` reports it
            sys.stdout.flush()
    sys.stderr.write(f"{paint('rmgr:', 'red', sys.stderr)} {folded(printable(message), sys.stderr, begin=6, indent=6)}\n")
    for line in hint.split("\n") if hint else ():
        sys.stderr.write(f"      {paint(folded(printable(line), sys.stderr, begin=6, indent=6), 'dim', sys.stderr)}\n")


def hint_of(error: click.ClickException, otherwise: str = "") -> str:
    """Returns what to type instead of what a parser refused. otherwise: used where only the help could be named."""
    own = getattr(error, "rmgr_hint", "")
    if own:
        return str(own)
    ctx = getattr(error, "ctx", None)
    if option := _option_of(error):
        from rmgr.cli.words.foreign import option_for

        if ctx is None:
            return otherwise or "rmgr --help"
        known = {name for parameter in ctx.command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        if told := option_for(option, ctx.meta.get("rmgr.args", ()), command=ctx.command.name or "", known=known):
            return told
    if ctx is None or otherwise:
        return otherwise or "rmgr --help"
    if job := _EXTRA_JOB.fullmatch(error.message):
        return f"of one job: rmgr show {job[1]}   ({ctx.command_path} --help)"
    example = _example(ctx.command.epilog) if isinstance(error, click.MissingParameter) else ""
    return f"as in: {example}   ({ctx.command_path} --help)" if example else f"{ctx.command_path} --help"


def _example(epilog: str | None) -> str:
    """Returns the first example of a command's help, without its explanation."""
    lines = (epilog or "").splitlines()[1:2]
    return re.split(r" {2,}| +#", lines[0].strip(), maxsplit=1)[0] if lines else ""


def _option_of(error: click.ClickException) -> str:
    """Returns the option that is unknown, or refuses its value: another system may have it."""
    if isinstance(error, click.NoSuchOption | click.BadOptionUsage):
        return error.option_name
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Option) and "not a valid" in error.message and error.ctx:
        typed = [word.partition("=")[0] for word in error.ctx.meta.get("rmgr.args", ())]
        return next((name for name in error.param.opts if name in typed or (len(name) == 2 and any(w[:2] == name for w in typed))), "")
    return ""


def _excerpt(error: UnicodeEncodeError) -> str:
    return repr(str(error.object)[max(0, error.start - 20) : error.end + 20])


def _clipped(text: str) -> str:
    """Shortens text from the command line, which may be a large file pasted by mistake."""
    return text if len(text) <= _MOST_TOLD else f"{text[: _MOST_TOLD * 2 // 3]} [...] {text[-_MOST_TOLD // 3 :]}"


def _is_directory_gone() -> bool:
    """Returns whether the working directory is gone: then no relative name resolves, and the error names no file."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _removed_directory() -> str:
    """Returns ": NAME" of the removed working directory, if the shell has told it."""
    name = os.environ.get("PWD", "")
    return f": {name}" if os.path.isabs(name) and not os.path.isdir(name) else ""


def _os_message(error: OSError) -> str:
    name = f"{error.filename}: " if error.filename else ""
    return f"{name}{error.strerror or error}"
