"""A digest of a program and of the package modules it imports, for `params` of its rule.

Snakemake does not see an edit to a program called from `shell:`. A rule that carries this digest
reruns when the program, or any `shardwright` module it reaches, changes its meaning; comments,
docstrings, layout, `touch` and a moved checkout change nothing. C source beside a module of the same
name counts as it stands.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from pathlib import Path

PACKAGE = "shardwright"


def _strip_docstrings(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:] or [ast.Pass()]


def _imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if name == PACKAGE or name.startswith(f"{PACKAGE}.")}


@functools.cache
def _parsed(path: Path) -> tuple[str, frozenset[str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = _imported(tree)
    _strip_docstrings(tree)
    return ast.dump(tree), frozenset(imported)


def _module_file(scripts: Path, name: str) -> Path | None:
    base = scripts.joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def source_files(scripts: Path, program: str) -> list[Path]:
    """Return the program's file and every package file it reaches, sorted by path."""
    todo, seen = [scripts / f"{program}.py"], set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in _parsed(path)[1]:
            found = _module_file(scripts, name)
            if found:
                todo.append(found)
    return sorted(seen)


@functools.cache
def code_digest(scripts: Path, program: str) -> str:
    """Return 16 hex digits that change when the program's meaning does.

    Args:
        scripts: The import root (the folder that holds the programs and the package).
        program: The program's name without `.py`.
    """
    digest = hashlib.sha256()
    for path in source_files(scripts, program):
        digest.update(str(path.relative_to(scripts)).encode())
        digest.update(_parsed(path)[0].encode())
        if (native := path.with_suffix(".c")).is_file():
            digest.update(native.read_bytes())
    return digest.hexdigest()[:16]
