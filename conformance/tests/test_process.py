"""Processes that answer lines, and the time that they may take for one."""

import sys

import pytest

from gyrator_conformance.process import LineProcess, ProcessEndedError


def answering(work):
    child = (
        f"import sys, time\nfor line in sys.stdin:\n    {work}\n    print(line.strip(), flush=True)"
    )
    return LineProcess((sys.executable, "-c", child), 1.0)


def ask(process):
    try:
        return process.ask(b"a line")
    finally:
        process.close()


def test_waiting_is_no_work():
    assert ask(answering("time.sleep(1.7)")) == b"a line\n"


@pytest.mark.parametrize("work", ["while True: pass", "time.sleep(1000)"])
def test_a_process_that_does_not_end_is_ended(work):
    with pytest.raises(ProcessEndedError) as caught:
        ask(answering(work))
    assert caught.value.slow


def test_a_process_that_ends_is_not_slow():
    with pytest.raises(ProcessEndedError) as caught:
        ask(answering("sys.exit(3)"))
    assert not caught.value.slow and "status 3" in str(caught.value)
