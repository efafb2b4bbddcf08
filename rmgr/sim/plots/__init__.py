"""Pictures of runs, sweeps and reports, with matplotlib (the extra `plots`): this package is the only place that imports it.

`pictures` chooses; `reading` reads results back, `canvas` draws; one file a kind of picture. Importing it without matplotlib raises
UsageError, which says what to install. The rest of the simulator must not import it.
"""

from rmgr.errors import UsageError

try:
    import matplotlib as mpl  # noqa: F401 - whether it is there; plots/canvas.py uses it
except ImportError as error:
    raise UsageError(f"pictures need matplotlib: {error}", hint="install it: pip install 'matplotlib>=3.8,<4'") from error
