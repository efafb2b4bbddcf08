"""Displays in a notebook are escaped and small, and never ask the cluster."""

from __future__ import annotations

import builtins
import io
import sys
import types

import pytest

from rmgr.client.executor import Executor
from rmgr.client.futures import Futures
from rmgr.client.progress import Counts, ProgressDisplay, card, escaped, is_notebook
from rmgr.client.taskqueue import TaskQueue
from tests.harness.client_cluster import Cluster, running


def square(x: int) -> int:
    if x < 0:
        raise ValueError("negative")
    return x * x


def test_texts_are_escaped_and_cut() -> None:
    assert escaped("<b onload='x'>&\x1b[31m\u202e") == "&lt;b onload=&#x27;x&#x27;&gt;&amp;\ufffd[31m\ufffd"
    assert len(escaped("x" * 10_000)) < 200
    shown = card("TaskQueue", "<script>", "here", Counts(total=8, final=3, failed=1), "function <f>")
    assert "<script>" not in shown
    assert "&lt;script&gt; at here, function &lt;f&gt;" in shown
    assert 'value="3" max="8"' in shown
    assert "3 of 8, 1 failed" in shown
    assert "unused" in card("Executor", "", "here", None)


def test_executors_queues_and_lists_of_futures_are_shown() -> None:
    with running() as (_, connection):
        with Executor(connection=connection) as executor:
            assert "unused" in executor._repr_html_()
            assert executor.submit(square, 3).result(60) == 9
            assert "1 of 1" in executor._repr_html_()
        assert "shut down" in executor._repr_html_()
        with TaskQueue(square, connection=connection) as queue:
            futures = queue.map(None, [1, 2, -3])
            for future in futures:
                future.exception(60)
            shown = futures._repr_html_()
            assert f"<td>{queue.id}_2</td><td>finished</td><td>n1</td><td>1</td>" in shown
            assert queue.futures() == []
            assert "no futures" in queue.futures()._repr_html_()
            assert "3 of 3, 1 failed" in queue._repr_html_()
        assert "closed" in queue._repr_html_()


def test_a_table_of_many_futures_is_small(cluster: Cluster) -> None:
    with cluster.connect() as connection, TaskQueue(square, connection=connection) as queue:
        futures = queue.map(None, range(1000))
        shown = Futures(futures)._repr_html_()
        assert "1,000 pending" in shown
        assert "980 more" in shown
        assert len(shown) < 4000


class _Handle:
    def __init__(self, first: object) -> None:
        self.shown = [first._repr_html_()]  # type: ignore[attr-defined]

    def update(self, again: object) -> None:
        self.shown.append(again._repr_html_())  # type: ignore[attr-defined]


def test_a_bar_is_drawn_in_place_below_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    handles: list[_Handle] = []

    class ZMQInteractiveShell:
        """What the kernel of a notebook has."""

    def display(shown: object, *, display_id: bool) -> _Handle:
        assert display_id
        handles.append(_Handle(shown))
        return handles[-1]

    assert not is_notebook()
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    stream = io.StringIO()
    monkeypatch.setattr("rmgr.client.progress.REDRAW_S", 0.0)
    with ProgressDisplay("<7> square", stream=stream) as display_:
        display_.update(Counts(total=10, final=4))
        display_.update(Counts(total=10, final=10, failed=2))
    assert len(handles) == 1  # one bar, not one a drawing
    assert "&lt;7&gt; square" in handles[0].shown[0]
    assert "4 of 10" in handles[0].shown[0]
    assert "10 of 10, 2 failed" in handles[0].shown[-1]
    assert stream.getvalue() == ""
    with ProgressDisplay("quiet", enabled=False):
        pass
    assert len(handles) == 1
