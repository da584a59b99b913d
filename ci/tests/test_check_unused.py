"""The checker of what is declared and does nothing finds each kind, and nothing in code in use."""

import pytest

NODES = """
from attrs import frozen
@frozen
class Launch:
    name: str
@frozen
class Wait:
    event: str
Instruction = Launch | Wait
"""
MAKES = """
from gyrator_ir.host.nodes import Instruction, Launch, Wait
print(Launch("k").name, Wait("e").event)
"""
DATA = "@frozen\nclass Data:\n    a: int\n    b: int\n"
USES = "from gyrator_x.m import Data\n"


@pytest.fixture
def problems(tmp_path, unused):
    """Return a function from files (path below packages/, text) to problems."""

    def check(files, kept=()):
        for name, text in files.items():
            path = tmp_path / "packages" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return unused.problems(tmp_path, dict.fromkeys(kept, "a reason"))

    return check


@pytest.mark.parametrize(
    "use",
    [
        "def f(x):\n    return x.a + x.b\nf(Data(1, 2))\n",
        "def f(x):\n    match x:\n        case Data(a, b=2):\n            return a\nf(1)\n",
        "from operator import attrgetter\nprint(attrgetter('a'), attrgetter('b'), Data)\n",
    ],
)
def test_fields_that_are_read(problems, use):
    assert problems({"x/src/gyrator_x/m.py": DATA, "x/src/gyrator_x/n.py": USES + use}) == []


@pytest.mark.parametrize(
    "use",
    [
        "def f(x):\n    x.b = Data(a=1, b=2).a\nf(1)\n",
        "def f(x):\n    match x:\n        case Data(a, _):\n            return a\nf(1)\n",
    ],
)
def test_a_field_that_nothing_reads(problems, use):
    files = {
        "x/src/gyrator_x/m.py": DATA,
        "x/src/gyrator_x/n.py": USES + use,
        "x/tests/test_n.py": "print(Data(1, 2).b)\n",
        "testing/src/gyrator_testing/m.py": "def f(x):\n    return x.b\n",
    }
    assert problems(files) == [
        "packages/x/src/gyrator_x/m.py:4: nothing reads the field gyrator_x.m.Data.b"
    ]
    assert problems(files, ["gyrator_x.m.Data.b"]) == []


def test_an_option_that_its_own_stage_does_not_read(problems):
    key = "    def key(self):\n        return self.deep\n"
    options = f"@frozen\nclass XOptions:\n    deep: bool\n{key}"
    other = "from gyrator_x.options import XOptions\nprint(XOptions(True).deep, XOptions.key)\n"
    files = {"x/src/gyrator_x/options.py": options, "y/src/gyrator_y/m.py": other}
    (found,) = problems(files)
    assert found.endswith("no stage reads the option gyrator_x.options.XOptions.deep")
    assert problems({**files, "x/src/gyrator_x/stage.py": other}) == []


def test_an_instruction_that_no_stage_makes(problems):
    wrapper = "wrapper_x/src/gyrator_wrapper_x/m.py"
    files = {"ir/src/gyrator_ir/host/nodes.py": NODES, wrapper: MAKES}
    made = [line.rpartition(" ")[2] for line in problems(files)]
    assert made == ["Launch", "Wait"]
    assert problems({**files, "scheduler/src/gyrator_scheduler/m.py": MAKES}) == []


@pytest.mark.parametrize("text", ["def f():\n    pass\n", "class f:\n    pass\n", "f = 1\n"])
def test_what_tests_alone_use(problems, text):
    files = {"x/src/gyrator_x/m.py": text, "x/tests/test_m.py": "from gyrator_x.m import f\n"}
    (found,) = problems(files)
    assert "only tests use the" in found and found.endswith("gyrator_x.m.f")
    assert problems({**files, "x/README.md": "Call `f`."}) == []


@pytest.mark.parametrize(
    ("text", "gives"),
    [
        ("def f(x, y=1):\n    return x, y\n", "print(f(1{}))\n"),
        ("def f(x, *, y=1):\n    return x, y\n", "print(f(1{}))\n"),
        ("class f:\n    def __init__(self, x, y=1):\n        pass\n", "print(f(1{}))\n"),
        ("class C:\n    def f(self, x, y=1):\n        pass\n", "print(C().f(1{}))\n"),
    ],
)
def test_a_parameter_that_no_call_gives(problems, text, gives):
    def found(more, place="y/src/gyrator_y/n.py"):
        files = {"x/src/gyrator_x/m.py": text, "y/src/gyrator_y/n.py": gives.format("")}
        return problems({**files, place: gives.format("") + more})

    (line,) = found("")
    assert line.endswith(": no call gives the parameter y of f")
    assert found(gives.format(", y=2")) == []
    assert found(gives.format(", y=2"), "x/tests/test_m.py") == []
    assert found(gives.format(", **more")) == []
    assert found("print(f, C.f)\n") == []


def test_a_parameter_that_is_given_by_place(problems):
    files = {"x/src/gyrator_x/m.py": "def f(x, y=1):\n    return x, y\n"}
    assert problems({**files, "y/src/gyrator_y/n.py": "print(f(1, 2))\n"}) == []


def test_exceptions_that_are_none(problems):
    (found,) = problems({"x/src/gyrator_x/m.py": ""}, ["gyrator_x.m.f"])
    assert "take it from KEPT" in found
