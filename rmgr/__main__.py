"""Runs the command line: `python -m rmgr`, as `rmgr`."""

from __future__ import annotations

from rmgr.cli.main import main

if __name__ == "__main__":
    main()
