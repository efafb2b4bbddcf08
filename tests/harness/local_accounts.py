"""Temporary local accounts for tests that run as real root: made with useradd, and always removed with userdel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from rmgr.adapters.host.accounts import Account, find_account

#: How long to wait while another process has locked /etc/passwd (s).
_LOCKED_S = 20.0


def need_accounts() -> None:
    """Skips the test if accounts cannot be made here."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("accounts can be made, and become, by root on Linux only")
    if shutil.which("useradd") is None or shutil.which("userdel") is None:
        pytest.skip("useradd and userdel are not there (Debian's package passwd)")


@dataclass
class LocalAccounts:
    """A context manager that removes at its end the accounts and groups that it has made."""

    made: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        need_accounts()
        return self

    def make(self, stem: str, *, uid: int | None = None, group: str = "") -> Account:
        """Makes an account, with a home unless `uid` is given, and adds it to `group` if given."""
        name = f"rmgr{stem}{uuid.uuid4().hex[:8]}"
        options = ["--shell", "/bin/sh", "--create-home" if uid is None else "--no-create-home"]
        if uid is not None:
            options += ["--uid", str(uid), "--non-unique"]
        if group:
            options += ["--groups", group]
        _patiently("useradd", *options, name)
        self.made.append(name)
        account = find_account(name)
        assert account is not None
        if uid is None:
            Path(account.home).chmod(0o700)
        return account

    def make_group(self, stem: str) -> str:
        """Makes a group; returns its name."""
        name = f"rmgr{stem}{uuid.uuid4().hex[:8]}"
        _patiently("groupadd", name)
        self.groups.append(name)
        return name

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in self.made:
            account = find_account(name)
            if account is not None and account.uid >= 1000:
                shutil.rmtree(account.home, ignore_errors=True)
            _patiently("userdel", "--force", name)
        for name in self.groups:
            _patiently("groupdel", name)


def _patiently(*command: str) -> None:
    end_s = time.monotonic() + _LOCKED_S
    while True:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if ended.returncode == 0:
            return
        if "lock" not in ended.stderr or time.monotonic() > end_s:
            raise AssertionError(f"{' '.join(command)}: {ended.stderr}")
        time.sleep(0.1)
