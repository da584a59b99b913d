"""The runner of `.gy` files, run on files of its own."""

import pytest

GOOD = """loop.program 1 @p
  in x: f32[8] strides [1] on cpu
  buffer y: f32[8] strides [1] on cpu
  pointwise op0 (i0 < 8)
    a = load x[i0]
    b: f32 = neg a
    store y[i0], b
  return y
"""
CONFTEST = """
from typing import ClassVar

import attrs

from gyrator_ir.body.nodes import Let
from gyrator_testing.baseline import baseline_host, baseline_schedule
from gyrator_testing.filetest.plugin import register

pytest_plugins = ["gyrator_testing.filetest.plugin"]


@attrs.frozen
class Replace:
    name: ClassVar[str] = "replace"
    op: str = "neg"

    def run(self, program):
        (op,) = program.operations
        body = tuple(
            Let(s.name, self.op, s.args, s.dtype) if isinstance(s, Let) else s for s in op.body
        )
        return attrs.evolve(program, operations=(attrs.evolve(op, body=body),))


def pytest_configure(config):
    register(
        config,
        passes={"replace": Replace},
        stages={"schedule": baseline_schedule, "host": baseline_host},
    )
"""


@pytest.fixture
def run(pytester):
    pytester.makeconftest(CONFTEST)

    def call(text, *args, **variables):
        path = pytester.path / "case.gy"
        path.write_text(text)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *args)
        return result, path

    return call


def outcome(run, text, **variables):
    result, path = run(text, **variables)
    return result.parseoutcomes(), path.read_text(), result.stdout.str()


def test_a_good_file_passes(run):
    assert outcome(run, f"; test verify\n{GOOD}")[0] == {"passed": 1}
    assert outcome(run, f"; test interpret\n{GOOD}; expect\n{GOOD}")[0] == {"passed": 1}


def test_a_difference_is_a_diff(run):
    wrong = GOOD.replace("neg", "abs")
    counts, _, shown = outcome(run, f"; test verify\n{GOOD}; expect\n{wrong}")
    assert counts == {"failed": 1}
    assert "-    b: f32 = abs a" in shown
    assert "+    b: f32 = neg a" in shown
    assert "GYRATOR_BLESS=1 pytest" in shown


def test_blessing_writes_the_expectation(run):
    given = f"; a remark\n; test pass replace{{op=neg}}\n; test interpret\n{GOOD}"
    counts, text, _ = outcome(run, given, GYRATOR_BLESS="1")
    assert counts == {"passed": 1}
    assert text == f"{given}; expect\n{GOOD}"
    assert outcome(run, text)[0] == {"passed": 1}


@pytest.mark.parametrize(
    "command",
    [
        "pass replace{op=abs}\n; test interpret",  # another meaning
        "pass replace{op=lt}",  # does not verify
        "error",  # no error
    ],
)
def test_blessing_waives_nothing(run, command):
    given = f"; test {command}\n{GOOD}"
    counts, text, _ = outcome(run, given, GYRATOR_BLESS="1")
    assert counts == {"failed": 1}
    assert text == given


def test_stages_change_the_level(run):
    given = f"; test stage schedule\n; test stage host\n; test interpret\n{GOOD}"
    counts, text, _ = outcome(run, given, GYRATOR_BLESS="1")
    assert counts == {"passed": 1}
    assert "; expect\nhost.program 1 @p\n" in text


def test_errors_are_expectations(run):
    bad = GOOD.replace("neg a", "neg c")
    want = "GY-LOOP-003: value 'c' is not defined here\n  in:   b: f32 = neg c\n"
    assert outcome(run, f"; test error\n{bad}; expect\n{want}")[0] == {"passed": 1}
    assert outcome(run, f"; test error\n{bad}; expect\nother\n")[0] == {"failed": 1}
    broken = GOOD.replace("return y", "return")
    want = "GY-PARSE-001: expected an element type"
    worse = GOOD.replace(
        "f32[8] strides [1] on cpu\n  buffer", "f3[8] strides [1] on cpu\n  buffer"
    )
    assert outcome(run, f"; test verify\n{worse}")[0] == {"failed": 1}
    counts, text, _ = outcome(run, f"; test error\n{worse}", GYRATOR_BLESS="1")
    assert counts == {"passed": 1}
    assert want in text
    assert outcome(run, f"; test verify\n{broken}")[0] == {"passed": 1}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("pas replace", "'pas' is none of"),
        ("pass", "takes a name"),
        ("interpret now", "takes no name"),
        ("stage lower", "no stage 'lower' is registered"),
        ("pass replce", "did you mean 'replace'?"),
    ],
)
def test_bad_commands(run, command, message):
    counts, _, shown = outcome(run, f"; test {command}\n{GOOD}")
    assert counts == {"failed": 1}
    assert message in shown


def test_a_file_says_what_to_do(run):
    counts, _, shown = outcome(run, GOOD)
    assert counts == {"failed": 1}
    assert "no line says" in shown
