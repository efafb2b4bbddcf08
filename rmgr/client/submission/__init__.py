"""Submissions of this process: `engine` looks after all of them, `handle` joins the parts of one.

`sender` packs, stores and signs what callers add, and gives it to the Submitter; `read_fragments` verifies what comes back; `waits` are
those of callers. They live on the Submitter's thread, and handle tasks as bytes. This room must not know futures, queues or executors,
nor run code of the user.
"""
