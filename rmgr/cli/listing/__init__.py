"""Shows work, the cluster and the past: jobs, tasks, nodes, queues, logs, history and reports.

The room reads through the session and draws through `display`. It changes nothing but lines of the history (`purge`).
"""
