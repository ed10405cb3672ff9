"""Editing a program or a module it reaches reruns exactly the rules that use it (R50)."""

from __future__ import annotations

import shutil

import pytest

from helpers import SCRIPTS
from shardwright.code_digest import _parsed, code_digest, source_files


@pytest.fixture
def tree(tmp_path):
    scripts = tmp_path / "scripts"
    (scripts / "shardwright/sub").mkdir(parents=True)
    (scripts / "one.py").write_text("from shardwright import a\n\ndef main():\n    return a.f()\n")
    (scripts / "two.py").write_text("def main():\n    from shardwright.sub.c import g\n    return g()\n")
    (scripts / "shardwright/__init__.py").write_text('"""Package."""\n')
    (scripts / "shardwright/a.py").write_text("from shardwright.b import h\n\ndef f():\n    return h()\n")
    (scripts / "shardwright/b.py").write_text("def h():\n    return 1\n")
    (scripts / "shardwright/sub/__init__.py").write_text("")
    (scripts / "shardwright/sub/c.py").write_text("def g():\n    return 2\n")
    return scripts


def digests(scripts):
    code_digest.cache_clear()
    _parsed.cache_clear()
    return {name: code_digest(scripts, name) for name in ("one", "two")}


def test_an_edit_changes_exactly_the_programs_that_reach_it(tree):
    before = digests(tree)
    (tree / "shardwright/b.py").write_text("def h():\n    return 7\n")
    after = digests(tree)
    assert after["one"] != before["one"] and after["two"] == before["two"]
    (tree / "shardwright/sub/c.py").write_text("def g():\n    return 3\n")
    assert digests(tree)["two"] != before["two"]


def test_comments_docstrings_layout_touch_and_a_move_change_nothing(tree, tmp_path):
    before = digests(tree)
    (tree / "shardwright/b.py").write_text(
        '"""New text."""\n# why\n\n\ndef h():\n    """Doc."""\n    return (1)\n'
    )
    assert digests(tree) == before
    moved = tmp_path / "elsewhere"
    shutil.move(tree, moved)
    assert digests(moved) == before


def test_c_source_beside_a_module_counts(tree):
    before = digests(tree)
    (tree / "shardwright/b.c").write_text("int h;")
    after = digests(tree)
    assert after["one"] != before["one"] and after["two"] == before["two"]


def test_a_moved_default_argument_is_seen(tree):
    before = digests(tree)
    (tree / "shardwright/b.py").write_text("def h(value=1):\n    return 1\n")
    assert digests(tree)["one"] != before["one"]


@pytest.mark.parametrize("program", sorted(p.stem for p in SCRIPTS.glob("*.py")))
def test_every_program_of_the_project_has_a_digest(program):
    assert len(code_digest(SCRIPTS, program)) == 16
    assert source_files(SCRIPTS, program)[-1].is_file()
