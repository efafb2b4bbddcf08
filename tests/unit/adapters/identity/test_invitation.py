"""Tokens to join a cluster, and what their secret opens."""

from __future__ import annotations

import pytest

from rmgr.adapters.identity import invitation
from rmgr.errors import UsageError

TOKEN = invitation.Token(
    ca=b"\x30ca",
    certificate=b"\x30cert",
    key=b"k" * 32,
    invitation="ab12",
    name="n1",
    role="starter",
    endpoints=("wd:7070",),
    zk="zk:2181/rmgr/x",
)


def test_a_token_is_one_word_and_says_all_of_it() -> None:
    text = invitation.encode(TOKEN)
    assert text.split() == [text]
    assert invitation.decode(text) == TOKEN


def test_a_token_survives_being_wrapped_by_a_terminal() -> None:
    text = invitation.encode(TOKEN)
    assert invitation.decode(f" {text[:40]}\n{text[40:]} \n") == TOKEN


@pytest.mark.parametrize("cut", [10, 60, -1])
def test_a_damaged_token_is_refused_without_being_repeated(cut: int) -> None:
    text = invitation.encode(TOKEN)[:cut]
    with pytest.raises(UsageError) as told:
        invitation.decode(text)
    assert text[6:] not in f"{told.value} {told.value.hint}"


def test_a_token_whose_certificate_was_changed_is_refused() -> None:
    with pytest.raises(UsageError, match="damaged"):
        invitation.tls_pair(invitation.decode(invitation.encode(TOKEN)))


def test_only_the_secret_opens_and_only_for_its_purpose() -> None:
    files = {"tls.key": b"secret", "ca.crt": b"public"}
    sealed = invitation.seal_files(b"s" * 32, "bundle of n1", files)
    assert b"secret" not in sealed
    assert invitation.unseal_files(b"s" * 32, "bundle of n1", sealed) == files
    for secret, purpose, content in (
        (b"t" * 32, "bundle of n1", sealed),
        (b"s" * 32, "bundle of n2", sealed),
        (b"s" * 32, "bundle of n1", sealed[:-1] + bytes([sealed[-1] ^ 1])),
        (b"s" * 32, "bundle of n1", b""),
    ):
        with pytest.raises(UsageError):
            invitation.unseal_files(secret, purpose, content)
