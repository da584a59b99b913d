"""The checker of names reports vague bindings, and nothing else."""

import pytest


def problems(names, tmp_path, text):
    path = tmp_path / "packages" / "x" / "src" / "m.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return list(names.problems(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "found = 1\n",
        "def f(found): ...\n",
        "for found in (): ...\n",
        "class C:\n    found: int\n",
        "x = [found for found in ()]\n",
        "lambda found: 1\n",
    ],
)
def test_vague_bindings_are_reported(names, tmp_path, text):
    (problem,) = problems(names, tmp_path, text)
    assert problem.startswith("packages/x/src/m.py:") and "'found'" in problem


def test_uses_and_attributes_are_not_bindings(names, tmp_path):
    assert problems(names, tmp_path, "print(found, x.found)\nx.found = 1\nresults = 2\n") == []


def test_modules_whose_names_differ_in_number_are_reported(names, tmp_path):
    for place in ("x/src/a/stage.py", "x/src/a/b/stages.py", "y/src/stages.py"):
        path = tmp_path / "packages" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (problem,) = names.problems(tmp_path)
    assert problem.startswith("packages/x/src/a/stage.py, packages/x/src/a/b/stages.py:")
