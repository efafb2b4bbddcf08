"""Measures for `rmgr bench`: one file a question (`rmgr.cli.bench` names them), `measuring` times.

Only the command line imports it. Programs that make load stand in `load`.
"""
