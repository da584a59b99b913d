"""Every stable error code of the product is documented, and some test provokes it."""

import re

import pytest

CODE = re.compile(r"\bGY-[A-Z]+-\d{3}\b")


def codes(paths):
    """Return the codes that occur in the files `paths`."""
    return {code for path in paths for code in CODE.findall(path.read_text())}


@pytest.fixture(scope="module")
def used(root):
    return codes(root.glob("packages/*/src/**/*.py"))


def test_every_code_is_documented(root, used):
    undocumented = used - codes(root.glob("docs/errors/*.md"))

    assert not undocumented, f"describe these in docs/errors/: {sorted(undocumented)}"


def test_every_documented_code_exists(root, used):
    stale = codes(root.glob("docs/errors/*.md")) - used

    assert not stale, f"docs/errors/ describes codes that nothing raises: {sorted(stale)}"


def test_every_code_is_tested(root, used):
    tests = [
        path
        for folder in (*root.glob("packages/*/tests"), *root.glob("conformance"))
        for path in folder.rglob("*")
        if path.suffix in (".py", ".gy")
    ]
    untested = used - codes(tests)

    assert not untested, f"no test mentions these: {sorted(untested)}"
