"""The processes of a cluster: Starter, WatchDog with the leader in it, gateway.

Each daemon is threads around one mailbox; its loop alone changes its state. Daemons use adapters and the client's procedures;
clocks, threads and randomness come from `rmgr.runtime.machine`. Nothing below imports them. The command line starts them by name.
"""

from rmgr.runtime.interpreter import defer

defer()  # before anything else is imported
