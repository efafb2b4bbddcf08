"""The command line: one file per group of commands."""

import os
import signal
import sys

#: This process is `rmgr`. While its modules are imported Ctrl-C just ends it (no traceback); `main` takes over from there.
IS_PROGRAM = os.path.basename(sys.argv[0] if sys.argv else "") in {"rmgr", "-m"}
if IS_PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
