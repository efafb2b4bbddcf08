"""What a daemon tells the others about where it listens."""

from __future__ import annotations

import socket

import pytest

from rmgr.runtime.secured import address_towards, advertised


@pytest.mark.parametrize(
    ("endpoint", "advertise", "told"),
    [
        ("127.0.0.1:7070", "", "127.0.0.1:7070"),
        ("10.0.0.5:41234", "", "10.0.0.5:41234"),
        ("0.0.0.0:7070", "node7", "node7:7070"),
        ("0.0.0.0:7070", "node7.example.org:17070", "node7.example.org:17070"),
        ("[::]:7070", "[fd00::7]", "[fd00::7]:7070"),
        ("[::]:7070", "[fd00::7]:17070", "[fd00::7]:17070"),
    ],
)
def test_others_are_told_an_address_that_can_be_dialled(endpoint: str, advertise: str, told: str) -> None:
    assert advertised(endpoint, advertise) == told


@pytest.mark.parametrize("listen", ["0.0.0.0", "[::]", ""])
def test_who_listens_everywhere_is_known_by_the_name_of_its_machine(listen: str) -> None:
    assert advertised(f"{listen}:7070") == f"{socket.gethostname()}:7070"


def test_what_reaches_another_over_loopback_alone_has_no_address_for_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert address_towards(f"127.0.0.1:{port}", timeout_s=30.0) == ""
        assert address_towards(f"localhost:{port}", timeout_s=30.0) == ""
    assert address_towards(f"127.0.0.1:{port}", timeout_s=30.0) == ""  # nobody listens there any more
    assert address_towards("nonsense", timeout_s=30.0) == ""
