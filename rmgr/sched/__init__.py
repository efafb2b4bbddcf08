"""Scheduling, pure: cluster state and causes in, a plan of decisions out; the same for the leader and the simulator."""
