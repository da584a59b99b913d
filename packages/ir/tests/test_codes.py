"""Every diagnostic code that this package can give has a test that meets it."""

import re
from pathlib import Path

import pytest

from gyrator_ir.body import verify as check
from gyrator_ir.host import verify as host
from gyrator_ir.kernel import verify as kernel
from gyrator_ir.loop import verify as loop

HERE = Path(__file__).parent
BODY = [f"{n:03}" for n in range(1, 11)]


def documented() -> set[str]:
    codes = {f"GY-{area}-{n}" for area in ("LOOP", "KERNEL") for n in BODY}
    for module in (loop, kernel, host):
        codes |= set(re.findall(r"^(GY-[A-Z]+-\d{3})  ", module.__doc__, re.MULTILINE))
    # What Kernel IR asks of nodes as Loop IR does of operations; a kernel may write what is there.
    codes |= {f"GY-KERNEL-{n:03}" for n in (11, 13, 14, 15, 16, 17, 18, 19)}
    return codes | {f"GY-PARSE-{n:03}" for n in (1, 2, 3)} | {f"GY-PASS-{n:03}" for n in (1, 2, 3)}


def met() -> set[str]:
    files = [*HERE.rglob("*.gy"), *(p for p in HERE.rglob("*.py") if p != Path(__file__))]
    return {code for p in files for code in re.findall(r"GY-[A-Z]+-\d{3}", p.read_text())}


@pytest.mark.parametrize("code", sorted(documented()))
def test_code_is_met_by_a_test(code):
    assert code in met()


def test_body_invariants_are_numbered_in_order():
    assert re.findall(r"^(\d{3})  ", check.__doc__, re.MULTILINE) == BODY


def test_readme_lists_every_code():
    table = (HERE.parent / "README.md").read_text()
    assert documented() <= set(re.findall(r"GY-[A-Z]+-\d{3}", table))
