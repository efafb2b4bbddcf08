"""One checkpoint out of the directories of all nodes of a job. Pure.

Every node began with the whole of the checkpoint before, and each changed files of its own: what a node has changed counts, what it has
left as it was does not. A file that several have changed is the head's, else that of the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmgr.daemons.starter.checkpoint.files import FileEntry


def united(parts: Sequence[Sequence[FileEntry]], base: Iterable[FileEntry] = ()) -> tuple[FileEntry, ...]:
    """The files of the checkpoint, in order of their paths.

    Args:
        parts: what was found on each node, the head first. base: what all of them began with.
    What one node has removed and no other has changed is gone. Cost: O(files of all nodes).
    """
    before = {entry.path: entry for entry in base}
    found = [{entry.path: entry for entry in part} for part in parts]
    kept: dict[str, FileEntry] = {}
    for path in sorted({path for part in found for path in part}):
        old = before.get(path)
        here = [part.get(path) for part in found]
        changed = next((entry for entry in here if entry is not None and (old is None or entry.content != old.content)), None)
        if changed is None and all(entry is not None for entry in here):
            changed = here[0]
        if changed is not None:
            kept[path] = changed
    return tuple(entry for entry in kept.values() if not _is_below_a_file(entry.path, kept))


def _is_below_a_file(path: str, kept: dict[str, FileEntry]) -> bool:
    """A directory on one node, a file on another: the file is what was kept first."""
    parent = path.rpartition("/")[0]
    while parent:
        above = kept.get(parent)
        if above is not None and not above.is_dir:
            return True
        parent = parent.rpartition("/")[0]
    return False
