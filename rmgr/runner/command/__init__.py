"""Commands of a slot: how one is started and how its end is described, and the queue of those that wait.

It uses `host`; it loads no user's Python code.
"""
