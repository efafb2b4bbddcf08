"""The foundation of daemons and client: clocks, threads and randomness, mailbox, timers, lease, back-off, failpoints, the watched store.

`machine` gives time and threads; loops and timers are built on it. The room may use adapters, `coord` and `model`. It must not import a
procedure, the client or a daemon, and it decides nothing about work.
"""
