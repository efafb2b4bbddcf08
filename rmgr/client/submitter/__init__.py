"""The Submitter: one thread that looks after all submissions of this process, and what they share.

`engine` owns the thread and implements `client/ports.py`; each submission is of the room `submission`. This room may use `values`,
`identity` and `procedures`. It handles tasks as bytes: it must not know futures, queues or executors, nor run code of the user.
"""
