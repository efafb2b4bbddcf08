"""Executes a command with every signal ignored and blocked, the worst that a process can inherit: `python deaf.py COMMAND ...`."""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    os.execvp(sys.argv[1], sys.argv[1:])
