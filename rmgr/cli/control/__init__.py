"""Changes that users and operators ask for: cancel, hold, update (`gate`), drain, migrate (`operate`), cluster settings, limits.

Each command is one commit or one question to the leader. The room must not submit work, nor wait for its end.
"""
