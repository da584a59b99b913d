"""Processes that answer lines, and the time that they may take for one."""

import sys

import pytest

from gyrator_conformance.process import LineProcess, ProcessEndedError


def answering(work):
    loop = f"for line in sys.stdin:\n    {work}\n    print(line.strip(), flush=True)"
    child = f"import os, sys, time\n{loop}"
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


@pytest.mark.parametrize("work", ["sys.exit(3)", "os.close(1); time.sleep(0.3); os._exit(3)"])
def test_a_process_that_ends_is_not_slow(work):
    with pytest.raises(ProcessEndedError) as caught:
        ask(answering(work))
    assert not caught.value.slow and "status 3" in str(caught.value)
