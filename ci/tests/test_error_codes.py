"""Every stable error code of the product is documented, and some test provokes it."""

import re

import pytest

CODE = re.compile(r"\bGY-[A-Z]+-\d{3}\b")


def codes(paths):
    """Return the codes that occur in the files `paths`."""
    return {code for path in paths for code in CODE.findall(path.read_text())}


def verifier_codes(root):
    """Return the codes that the checker of bodies puts together from an area and a number."""
    text = (root / "packages/ir/src/gyrator_ir/body/verify.py").read_text()
    numbers = re.findall(r"^(\d{3})  \w", text, re.MULTILINE)
    assert numbers, "check.py lists its codes in its docstring"
    return {f"GY-{area}-{number}" for area in ("LOOP", "KERNEL") for number in numbers}


@pytest.fixture(scope="module")
def used(root):
    return codes(root.glob("packages/*/src/**/*.py")) | verifier_codes(root)


def test_every_code_is_documented(root, used):
    undocumented = used - codes(root.glob("docs/errors/*.md"))

    assert not undocumented, f"describe these in docs/errors/: {sorted(undocumented)}"


def test_every_documented_code_exists(root, used):
    # the verifier of schedules shares checks, and their numbers, with that of loop programs
    shared = {code.replace("LOOP", "KERNEL") for code in used}
    stale = codes(root.glob("docs/errors/*.md")) - used - shared

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


def test_every_code_is_documented_once(root):
    rows = [
        code
        for path in root.glob("docs/errors/*.md")
        for code in re.findall(r"^\| `(GY-[A-Z]+-\d{3})` \|", path.read_text(), re.MULTILINE)
    ]
    repeated = {code for code in rows if rows.count(code) > 1}

    assert rows and not repeated, f"docs/errors/ has several rows for {sorted(repeated)}"
