"""Pure scheduling: takes cluster state and causes, returns a plan of decisions; the live leader and the simulator share it.

This directory holds the nouns and the pass (`job`, `records`, `plan`, `policy`, `parameters`, `engine`), policies by name (`catalogue`),
pipelines from tables (`pipeline`) and the vetting of other programs' plans (`vetting`). Layers, lowest first: tree, capacity, state, what a
policy reads and writes on (`view`, `draft`), policies. Modules that users' policies import (README.md) keep their place.
"""
