"""Submissions of this process: `engine` looks after all of them, `handle` joins the parts of one, lets callers wait for it, and verifies
what comes back.

`packing` makes blocks of added tasks; `sender` stores and signs them and gives them to the Submitter. They live on the Submitter's thread,
and handle tasks as bytes. This room must not know futures, queues or executors, nor run code of the user.
"""
