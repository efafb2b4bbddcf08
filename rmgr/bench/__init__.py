"""Measurements for `rmgr bench`: one file per question (`rmgr.cli.bench` names them); `measuring` takes times.

Only the command line imports this package. Programs that make load are in `load`.
"""
