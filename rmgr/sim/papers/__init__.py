"""The papers' experiments, run again: each module returns a report of checks and tables, the paper's values beside ours."""
