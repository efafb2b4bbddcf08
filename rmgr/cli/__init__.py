"""The command line: a room for each kind of command, top files for daemons and for commands that concern only this machine.

Each command is imported only when it is used (`main.py` has the table). Commands parse words, call the client and its
procedures, and draw answers; they must not make decisions of the client or the leader.
"""

import os
import signal
import sys

#: Whether this process is `rmgr`. While its modules are imported, Ctrl-C just ends it (no traceback); then `main` takes over.
IS_PROGRAM = os.path.basename(sys.argv[0] if sys.argv else "") in {"rmgr", "-m"}
if IS_PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
