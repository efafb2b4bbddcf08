"""Deeds: what they cover, and which user may do what with a value. Pure."""

from __future__ import annotations

import pytest

from rmgr.coord.decisions import rights
from rmgr.coord.decisions.rights import ALL, ANYBODY, Deed, Holder, Look, Person, ValueShare
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import About, Encoding
from rmgr.coord.seal import NotSealed
from rmgr.errors import PermissionDenied

ANN, BOB, BOSS = Person(name="ann"), Person(name="bob"), Person(name="boss", is_operator=True)
ROW = keys.named("in/7")
OUT = keys.output(3, 4, 1, 0)
HERS = Holder(owner="ann", writer="ann", why="")


def told(deed: Deed, row: str = ROW, encoding: Encoding = Encoding.RAW, sha256: bytes = b"1" * 32, cluster_id: str = "c") -> bytes:
    return rights.deed_statement(deed, row, encoding, sha256, cluster_id=cluster_id)


def test_a_deed_covers_cluster_row_bytes_encoding_owner_and_time() -> None:
    deed = rights.deed(ROW, "ann", "k", 5)
    statements = {
        told(deed),
        told(deed, row=keys.named("in/8")),
        told(deed, encoding=Encoding.PICKLE),
        told(deed, sha256=b"2" * 32),
        told(deed, cluster_id="d"),
        told(rights.deed(ROW, "bob", "k", 5)),
        told(rights.deed(ROW, "ann", "k", 6)),
    }
    assert len(statements) == 7


def test_the_deed_of_an_output_goes_with_its_copy_and_with_no_other_row() -> None:
    deed = rights.deed(OUT, "ann", "k", 5)
    assert deed.row == OUT
    final = keys.final(keys.Pointer(sub=3, index=4, n=0, by="g"))
    assert told(deed, row=OUT) == told(deed, row=final)
    for row in (keys.output(3, 4, 2, 0), keys.final(keys.Pointer(sub=3, index=5, n=0, by="g")), ROW):
        with pytest.raises(NotSealed):
            told(deed, row=row)
    with pytest.raises(NotSealed):
        told(rights.deed(ROW, "ann", "k", 5), row=OUT)


def test_a_note_is_a_deed_or_says_why_not() -> None:
    deed = rights.deed(OUT, "ann", "k", 5)
    assert rights.decode_deed(rights.encode_deed(deed)) == deed
    for note in (b"", b"\xc1", b"\x91\xa1x", b"{}"):
        with pytest.raises(NotSealed):
            rights.decode_deed(note)
        assert rights.deed_of(About(1, Encoding.RAW, b"", note)) is None


@pytest.mark.parametrize(
    ("look", "reads", "writes"),
    [
        (Look(person=ANN, holder=HERS), True, True),
        (Look(person=BOB, holder=HERS), False, False),
        (Look(person=BOSS, holder=HERS), True, True),
        (Look(person=ANYBODY, holder=HERS), True, True),
        (Look(person=BOB, holder=HERS, open_reading=True), True, False),
        (Look(person=BOB, holder=HERS, shares=(ValueShare(owner="ann", user="bob", key="in/7"),)), True, False),
        (Look(person=BOB, holder=HERS, shares=(ValueShare(owner="ann", user=ALL, key="in/", is_prefix=True, write=True),)), True, True),
        (Look(person=BOB, holder=HERS, shares=(ValueShare(owner="ann", user="bob", key="in/"),)), False, False),
        (Look(person=BOB, holder=Holder()), False, False),
        (Look(person=Person(), holder=Holder()), False, False),
        (Look(person=BOB, holder=Holder(), open_reading=True), True, False),
        (Look(person=BOSS, holder=Holder()), True, True),
    ],
)
def test_who_may_read_and_write(look: Look, reads: bool, writes: bool) -> None:
    assert (rights.may_read(look, "in/7"), rights.may_write(look, "in/7")) == (reads, writes)


def test_bytes_that_are_not_the_owners_word_are_not_read_but_replaced() -> None:
    look = Look(person=ANN, holder=Holder(owner="ann", writer="bob", why="", foul="bob wrote it"))
    rights.check_seen(look, "in/7")
    rights.check_write(look, "in/7")
    with pytest.raises(PermissionDenied, match="cannot be believed: bob wrote it"):
        rights.check_read(look, "in/7")


def test_a_pickle_is_loaded_by_its_writer_and_by_who_trusts_him() -> None:
    bobs = Holder(owner="ann", writer="bob", why="")
    rights.check_pickle(BOB, "k", bobs, (), how="")
    rights.check_pickle(ANN, "k", bobs, ("bob",), how="")
    rights.check_pickle(ANN, "k", bobs, ("all",), how="")
    rights.check_pickle(ANN, "k", Holder(), ("nobody",), how="")
    for holder, trust in ((bobs, ()), (bobs, ("ann",)), (Holder(), ("ann",)), (Holder(), ())):
        with pytest.raises(PermissionDenied, match="pickle") as denied:
            rights.check_pickle(ANN, "k", holder, trust, how="trust={who}")
        assert denied.value.hint == f"trust={holder.writer or 'nobody'}"
    with pytest.raises(PermissionDenied):
        rights.check_pickle(Person(), "k", Holder(), (), how="")


def test_a_share_stands_in_a_row_of_its_own_and_in_no_other() -> None:
    share = ValueShare(owner="ann", user="bob", key="in/", is_prefix=True, write=True)
    data = rights.encode_share(share)
    assert rights.decode_share(share.row, data) == share
    assert keys.parse_share(share.row) == ("ann", "bob")
    other = ValueShare(owner="ann", user="bob", key="in/")
    assert other.row != share.row
    for row, what in ((other.row, data), (share.row, b"{}"), ("share/ann/bob", data), (share.row, b"\xff")):
        with pytest.raises(NotSealed):
            rights.decode_share(row, what)
