"""Questions to a cluster: answered by the leader from memory, by znodes where no leader answers, by the history for what has left both.

`leaders` finds who answers, `query` asks, `node_stats` adds the load that each node reports, `past` reads the history.
The room prints nothing.
"""
