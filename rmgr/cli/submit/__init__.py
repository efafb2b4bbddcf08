"""`rmgr submit`, `rmgr run` and their like: options and lists of jobs become requests of `client.commands`, which checks and submits.

`submit` with its options (what is asked for) and the dry run, `jobs_file` (many jobs, all or nothing), `run` (output as it comes, and
where it goes), `rerun`; inside a placed job `ranks`, and `terminal` (`run --pty`). The room must not decide what is submitted, nor reach
the cluster but through the session and `waiting`.
"""
