"""Distributed queue tree (DQT): gang time-sharing over nested partitions, as plain arithmetic on slots.

Source: Hori, Ishikawa, Konaka, Maeda, Tomokiyo: time-sharing scheduling for massively parallel machines (in Japanese). The paper's nodes
pass `next_turn` and `add_task` messages; here one owner publishes the tree with its front, from which every node computes the same slots.
This directory holds the tree, its run queues, the front that crosses it, and where new tasks go. It may use the standard library only: no
jobs, no drafts, no clock, no random numbers. The policy (`rmgr.sched.policies.dqt`) and the simulator (`rmgr.sim.gangs`) build on it.
"""
