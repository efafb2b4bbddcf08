"""Forgeries that mallory makes from blocks signed by ann: from a single block, and from several that share a signature."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

from rmgr.adapters.identity.pki import issue, make_ca
from rmgr.adapters.identity.trust import publish
from rmgr.coord.seal import seal_blocks, spec_digest
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.identity import Role
from rmgr.model.submission import Submission
from rmgr.procedures.snapshot import read_submission
from tests.harness.attacker import Scene, changed, unique

Block = tuple[BlockKey, BlockData]


def record(scene: Scene, number: int, **changes: Any) -> Any:
    """Returns a submission's record, with changes if any are given."""
    return replace(read_submission(scene.ann.zk, number), **changes)


# -- of a single block ---------------------------------------------------------------------------------------------------------


def other_argument(scene: Scene, number: int, key: BlockKey, data: BlockData) -> Block:
    return key, changed(data, payloads=(b"; rm -rf /",))


def sealed_by_mallory(scene: Scene, forged: Submission, blocks: list[Block]) -> list[Block]:
    return scene.signer(scene.mallory).sealer(forged)(blocks)


def no_seal(scene: Scene, number: int, key: BlockKey, data: BlockData) -> Block:
    return key, changed(data, seal=None)


def own_seal(scene: Scene, number: int, key: BlockKey, data: BlockData) -> Block:
    publish(scene.mallory.zk, scene.mallory.credentials)
    return sealed_by_mallory(scene, record(scene, number), [(key, data)])[0]


def own_seal_with_her_key_id(scene: Scene, number: int, key: BlockKey, data: BlockData) -> Block:
    _, mine = own_seal(scene, number, key, data)
    assert mine.seal is not None
    assert data.seal is not None
    return key, changed(mine, seal=changed(mine.seal, key_id=data.seal.key_id))


def unknown_key(scene: Scene, number: int, key: BlockKey, data: BlockData) -> Block:
    return key, changed(data, seal=changed(data.seal, key_id="0" * 32))


def no_key(scene: Scene, number: int, key: BlockKey, data: BlockData) -> Block:
    return key, changed(data, seal=changed(data.seal, key_id="../nodes/n1"))


def other_authority(scene: Scene, number: int, key: BlockKey, data: BlockData) -> Block:
    """Signs with a published certificate that names ann but comes from mallory's own authority."""
    from rmgr.adapters.identity.credentials import Credentials, write_files

    forged = scene.directory / f"forged-{unique()}"
    write_files(forged, issue(make_ca(scene.ann.credentials.identity.cluster), "ann", Role.USER))
    credentials = Credentials.load(forged)
    publish(scene.mallory.zk, credentials)
    shutil.rmtree(forged)
    told = {"cluster_id": scene.cluster_id, "user": "ann", "spec": spec_digest(record(scene, number))}
    [made] = seal_blocks([(key, data)], key_id=credentials.identity.key_id, not_after_s=2**40, sign=credentials.sign, **told)
    return made


def more_cores(scene: Scene, number: int, key: BlockKey, data: BlockData) -> Block:
    return replace(key, cores=2), data


def later(scene: Scene, number: int, key: BlockKey, data: BlockData) -> Block:
    assert data.seal is not None
    return key, changed(data, seal=changed(data.seal, not_after_s=2**40))


# -- of several blocks ----------------------------------------------------------------------------------------------------------------


def with_signature(data: BlockData, signature: bytes) -> BlockData:
    return changed(data, seal=changed(data.seal, signature=signature))


def signatures(blocks: list[Block]) -> list[bytes]:
    return [data.seal.signature for _, data in blocks if data.seal is not None]


def path_of_another(scene: Scene, blocks: list[Block]) -> Block:
    first, second, _ = signatures(blocks)
    return blocks[0][0], with_signature(blocks[0][1], first[:68] + second[68:])


def seal_of_another(scene: Scene, blocks: list[Block]) -> Block:
    return blocks[0][0], changed(blocks[0][1], seal=changed(blocks[1][1].seal, first=0))


def task_of_another(scene: Scene, blocks: list[Block]) -> Block:
    return blocks[0][0], with_signature(changed(blocks[0][1], payloads=(b"x",)), signatures(blocks)[0])


def path_cut_off(scene: Scene, blocks: list[Block]) -> Block:
    return blocks[0][0], with_signature(blocks[0][1], signatures(blocks)[0][:-32])


def no_path(scene: Scene, blocks: list[Block]) -> Block:
    return blocks[0][0], with_signature(blocks[0][1], signatures(blocks)[0][:64])


def a_level_higher(scene: Scene, blocks: list[Block]) -> Block:
    """The last of three blocks is a child of the root; the first block pretends to be its sibling."""
    first, _, last = signatures(blocks)
    return blocks[0][0], with_signature(blocks[0][1], last[:64] + bytes([0, 0, 0, 2]) + first[-32:])


def other_root(scene: Scene, blocks: list[Block]) -> Block:
    _, others = scene.intercepted_together()
    return blocks[0][0], changed(blocks[0][1], seal=others[0][1].seal)


def own_root(scene: Scene, blocks: list[Block]) -> Block:
    publish(scene.mallory.zk, scene.mallory.credentials)
    return sealed_by_mallory(scene, record(scene, blocks[0][0].submission), blocks)[0]
