"""The Submitter: one thread that commits this process's submissions, follows their outcomes and repairs failures.

`engine` owns the thread; `lane` is one submission; `sender` commits blocks; `follower` reads outcomes; `repair` resubmits.
The room implements `client/ports.py` and may use `values`, `identity` and `procedures`. It handles tasks as bytes:
it must not know futures, queues or executors, nor run code of the user.
"""
