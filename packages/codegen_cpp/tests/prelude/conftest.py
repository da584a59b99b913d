"""Fixtures of the prelude's tests: the instruction sets at hand and a folder for libraries."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from prelude_harness import runnable_isas

from gyrator_codegen_cpp.prelude import Isa


@pytest.fixture(params=runnable_isas(), ids=lambda isa: isa.name.lower())
def isa(request):
    """Each instruction set that this machine runs."""
    return request.param


@pytest.fixture(params=[i for i in runnable_isas() if i is not Isa.PLAIN], ids=lambda i: i.name.lower())
def vector_isa(request):
    """Each instruction set with vectors that this machine runs."""
    return request.param


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where the libraries of the session lie."""
    return tmp_path_factory.mktemp("prelude")
