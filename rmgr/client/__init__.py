"""The Python API: task queues, executors, futures, and the connection of a process to its cluster.

Users import it as `from rmgr import TaskQueue`. From top to bottom: the files of the API; `commands` (submits command lines), `queries`
(asks the leader) and `logs`, with the caller's connections (`reach`), used by the shell; `submission` (commits work and follows outcomes);
`values`, `pickling` and `content` (functions, arguments and results as bytes in the store); `identity` (signatures); then what all share
(`progress`, `specs`, `chunk`). The client may use `submitter`, `procedures`, `runtime` and the rooms below. It must not import a daemon,
the simulator or a command.
"""
