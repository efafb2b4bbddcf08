"""`rmgr submit`, `rmgr run` and the like: turn options and lists of jobs into requests of `client.commands`, which checks and submits.

`submit` with its options and the dry run, `jobs_file` (many jobs, all or nothing), `run` (output as it comes, and
its destinations), `rerun`; inside a placed job `ranks`, and `terminal` (`run --pty`). The room must not decide what is submitted, and
reaches the cluster only through the session and `waiting`.
"""
