"""What is looked at before a commit needs nothing that is not in the environment, and names what there is."""

from __future__ import annotations

import importlib.util
import shlex

import yaml

from tests.places import ROOT


def test_hooks_run_the_tools_of_the_environment_on_files_that_there_are() -> None:
    document = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert {repo["repo"] for repo in document["repos"]} == {"local"}
    hooks = {hook["id"]: hook for repo in document["repos"] for hook in repo["hooks"]}
    assert list(hooks) == ["ruff", "mypy", "house"]
    for hook in hooks.values():
        python, flag, module, *words = shlex.split(hook["entry"])
        assert (python, flag, hook["language"]) == ("python", "-m", "system")
        assert importlib.util.find_spec(module) is not None
        assert [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()] == []
