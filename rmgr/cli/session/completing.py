"""Completion of ids, nodes and queues: a quick look at the cluster, and silence when it does not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from rmgr.cli.session.context import Session

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: A tab must not hang.
_PATIENCE_S = 1.0


def ids(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Submissions of this user, newest first, with their names; `last` and `all`."""

    def look(session: Session) -> list[tuple[str, str]]:
        jobs = sorted(session.query().jobs(ended=True, user=session.me), key=lambda job: -job.id)
        return [(str(job.id), f"{job.name} {job.state}") for job in jobs] + [("last", "the newest"), ("all", "all of yours")]

    return _offer(look, incomplete)


def nodes(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of nodes."""
    return _offer(lambda session: [(node.id, node.state) for node in session.query().nodes()], incomplete)


def queues(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of queues."""
    return _offer(lambda session: [(queue.id, queue.state) for queue in session.query().queues()], incomplete)


def _offer(look: Callable[[Session], list[tuple[str, str]]], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    session = Session(timeout_s=_PATIENCE_S, is_quiet=True)
    try:
        return [CompletionItem(name, help=told) for name, told in look(session) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a tab completes what it can, and never says why it cannot
        return []
    finally:
        session.close()
