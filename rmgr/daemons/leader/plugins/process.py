"""Starts and asks the process that runs a partition's own policies; ends it when it takes too long.

Time and memory of such a process are bounded (`leader/plugins/child.py`). It is no sandbox: it has the user and the files of the WatchDog.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import subprocess
import sys
import threading
from typing import Any

from rmgr.daemons.leader.plugins.child import LENGTH
from rmgr.errors import UNREADABLE_TEXT
from rmgr.model.base.units import format_duration
from rmgr.runtime import machine

#: One pass may take so long, its first one, which imports the policy, so much longer; and memory beside the interpreter's code.
LIMIT_S, START_S, MOST_BYTES = 5.0, 5.0, 768 << 20
#: More than any plan.
_MOST_ANSWER = 64 << 20
#: The process ends itself so much later than it is ended.
_SPARE_S = 2.0


class PolicyFailed(Exception):
    """Raised when there is no answer; the message says why."""


class PolicyProcess:
    """One process, started when it is asked, again after it was ended. Used by one thread at a time; `close` from any thread."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._child: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._closed = False
        self._lock = threading.Lock()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer. Waits for it at most `limit_s`, and START_S more where the process is started.

        Raises: PolicyFailed when it raised, ended, or did not answer in time: then it was ended.
        """
        is_new = self._child is None
        limit_s = self._limit_s + (START_S if is_new else 0.0)
        end_s = machine.monotonic() + limit_s
        child = self._start(self._limit_s + START_S + _SPARE_S)
        data = pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
        try:
            self._write(child, LENGTH.pack(len(data)) + data, end_s)
            (length,) = LENGTH.unpack(self._read(LENGTH.size, end_s))
            if length > _MOST_ANSWER:
                raise PolicyFailed(f"its answer has {length} bytes")
            answer = json.loads(self._read(length, end_s))
        except TimeoutError:
            self.end()
            raise PolicyFailed(f"did not end within {format_duration(limit_s)}") from None
        except (EOFError, BrokenPipeError):
            code = self.end()
            raise PolicyFailed(f"its process ended ({f'signal {-code}' if code < 0 else f'exit code {code}'})") from None
        except UNREADABLE_TEXT as error:
            self.end()
            raise PolicyFailed(f"its answer cannot be read: {error}") from error
        if not isinstance(answer, dict) or "error" in answer:
            raise PolicyFailed(str(answer["error"] if isinstance(answer, dict) else "no answer"))
        return answer

    def end(self) -> int:
        """Kills it. Returns: its exit code."""
        with self._lock:
            child, self._child = self._child, None
            if child is None:
                return 0
            child.kill()
            code = child.wait()
            assert child.stdin is not None
            with contextlib.suppress(OSError):
                child.stdin.close()
            os.close(self._answers)
            return code

    def close(self) -> None:
        """For good: a request under way fails."""
        self._closed = True
        child = self._child
        if child is not None:
            child.kill()  # whoever asks it is told, and ends it

    def _start(self, seconds: float) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise PolicyFailed("the leadership is over")
            if self._child is None:
                mine, its = os.pipe()
                try:
                    words = [sys.executable, "-m", "rmgr.daemons.leader.plugins.child", str(its), str(seconds), str(MOST_BYTES)]
                    self._child = subprocess.Popen(
                        words,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        pass_fds=(its,),
                        start_new_session=True,
                    )
                except OSError as error:
                    os.close(mine)
                    raise PolicyFailed(f"its process cannot be started: {error}") from error
                finally:
                    os.close(its)
                self._answers = mine
                assert self._child.stdin is not None
                os.set_blocking(self._child.stdin.fileno(), False)
            return self._child

    def _write(self, child: subprocess.Popen[bytes], data: bytes, end_s: float) -> None:
        assert child.stdin is not None
        fd, view = child.stdin.fileno(), memoryview(data)
        while view:
            _wait(fd, select.POLLOUT, end_s)
            view = view[os.write(fd, view) :]

    def _read(self, length: int, end_s: float) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            _wait(self._answers, select.POLLIN, end_s)
            part = os.read(self._answers, min(1 << 20, length - len(parts)))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)


def _wait(fd: int, event: int, end_s: float) -> None:
    """Until it can be used. (`select` takes no descriptor above 1023.) Raises: TimeoutError."""
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(max(0.0, end_s - machine.monotonic()) * 1e3):
        raise TimeoutError
