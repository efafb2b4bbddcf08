"""Pictures of runs, sweeps and reports. Only this package imports matplotlib (the extra `plots`).

`pictures` chooses what to draw, `reading` reads results back, `canvas` draws; each kind of picture has its file. Importing the package
without matplotlib raises UsageError, which says what to install. The rest of the simulator must not import the package.
"""

from rmgr.errors import UsageError

try:
    import matplotlib as mpl  # noqa: F401 - whether it is there; plots/canvas.py uses it
except ImportError as error:
    raise UsageError(f"pictures need matplotlib: {error}", hint="install it: pip install 'matplotlib>=3.8,<4'") from error
