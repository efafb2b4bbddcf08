"""Measures for `rmgr bench`: one file a question, `table` names them, `measuring` times and prints.

Only the command line imports it. Programs that make load stand in `load`.
"""
