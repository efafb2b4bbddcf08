"""How the package is cut: `python -m tests.bench.lines` prints modules, lines, imports, Protocols and `partial(` of daemons.

Lines of code are without blanks, comments and docstrings; generated stubs are left out.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

from tests.places import ROOT, TESTS

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def counted(path: Path) -> Counter[str]:
    """What one module has."""
    text = path.read_text(encoding="utf-8")
    found = Counter(modules=1, lines=text.count("\n"))
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import() | ast.ImportFrom():
                found["lines of imports"] += (node.end_lineno or node.lineno) - node.lineno + 1
            case ast.ClassDef(bases=bases) if any(ast.unparse(base).startswith("Protocol") for base in bases):
                found["Protocols"] += 1
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    used = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    found["lines of code"] = len(used - docstrings)
    if "daemons" in path.parts:
        found["partial( in daemons"] = text.count("partial(")
    return found


def main() -> None:
    """Prints the table."""
    modules = [path for path in (ROOT / "rmgr").rglob("*.py") if "_pb2" not in path.name]
    found = sum((counted(path) for path in modules), Counter[str]())
    found["lines of tests"] = sum(path.read_text(encoding="utf-8").count("\n") for path in TESTS.rglob("*.py"))
    for what, count in found.items():
        print(f"{what:<22}{count:>9,}")


if __name__ == "__main__":
    main()
