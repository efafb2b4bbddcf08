"""Ports that servers of a local cluster are given before they listen."""

from __future__ import annotations

from rmgr.dev import server


def test_a_port_is_not_named_twice_though_nobody_listens_on_it_yet():
    server.free_port()
    ports = [server.free_port() for _ in range(200)]
    assert len(set(ports)) == len(ports)


def test_a_draw_that_repeats_itself_is_drawn_again(monkeypatch):
    first, second = server.free_port(), server.free_port()
    draw, draws = server.random.randrange, iter([first, first, second, first])
    monkeypatch.setattr(server.random, "randrange", lambda low, high: next(draws, None) or draw(low, high))
    assert server.free_port() not in {first, second}
