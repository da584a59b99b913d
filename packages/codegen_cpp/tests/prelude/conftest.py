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


VECTOR_ISAS = [isa for isa in runnable_isas() if isa is not Isa.PLAIN]


@pytest.fixture(params=VECTOR_ISAS, ids=lambda isa: isa.name.lower())
def vector_isa(request):
    """Each instruction set with vectors that this machine runs."""
    return request.param


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where the libraries of the session lie."""
    return tmp_path_factory.mktemp("prelude")
