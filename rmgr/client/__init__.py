"""The Python API: task queues, executors, futures, and the connection of a process to its cluster.

Users import it as `from rmgr import TaskQueue`. From top to bottom: the files of the API; `commands` (submits command lines)
and `queries` (asks the leader), used by the shell; `submitter` (commits work and follows outcomes); `values` (functions,
arguments and results as bytes); `identity` (signatures) and `logs`; then the nouns that all share (`ports`, `waiting`,
`progress`, `specs`, `chunk`). The client may use `procedures`, `runtime` and what is below.
It must not import a daemon, the simulator or a command.
"""
