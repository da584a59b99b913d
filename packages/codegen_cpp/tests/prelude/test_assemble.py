"""The assembly of a prelude: minimal, deterministic, header-free, complete, quick to compile."""

import re
import shutil
import subprocess
import sys
import time
from importlib import resources

import pytest
from prelude_harness import FLAGS

from gyrator_codegen_cpp.prelude import Isa, UnknownPreludeName, assemble, load_manifest, names_in
from gyrator_testing.kernels.emulator import machine

KERNEL = """
extern "C" void kernel(const sf32 *x, const gy_bf16 *y, sf32 *o, si64 n) {
  si64 i = 0;
#if GY_VEC
  for (; i + GY_LANES <= n; i += GY_LANES)
    gy_store(o + i, gy_mul(gy_erf(gy_vload(x + i)), gy_exp(gy_vload(y + i))));
  if (i < n) gy_store_n(o + i, gy_erf(gy_vload_n(x + i, n - i)), n - i);
#else
  for (; i < n; i++) gy_store(o + i, gy_mul(gy_erf(gy_sload(x + i)), gy_exp(gy_sload(y + i))));
#endif
}
"""


def public_names() -> list[str]:
    return [n for header in load_manifest().headers for n in header.provides]


def compiler(isa: Isa) -> str:
    """The compiler for an instruction set; the test is skipped where there is none."""
    result = machine("aarch64") if isa is Isa.NEON else None
    if isinstance(result, str):
        pytest.skip(result)
    return "g++" if result is None else result.compiler


def compile_text(text: str, isa: Isa, *flags: str) -> subprocess.CompletedProcess:
    command = [compiler(isa), "-x", "c++", "-std=c++17", "-fopenmp", *isa.flags, *flags, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("isa", Isa, ids=lambda isa: isa.name.lower())
def test_no_section_includes_a_header(isa):
    text = assemble(public_names(), isa)
    assert "#include" not in text
    done = compile_text(text, isa, "-E", "-H")
    assert done.returncode == 0
    assert not re.search(r"^\.+ (?!.*/stdc-predef\.h)", done.stderr, re.MULTILINE)
    sources = set(re.findall(r'^# \d+ "([^"]+)"', done.stdout, re.MULTILINE))
    # GCC itself puts stdc-predef.h before every text
    own = {"<stdin>", "<built-in>", "<command-line>"}
    assert {s for s in sources if not s.endswith("/include/stdc-predef.h")} <= own


@pytest.mark.parametrize("isa", Isa, ids=lambda isa: isa.name.lower())
def test_every_name_compiles_with_only_what_it_needs(isa):
    # one process a header: each name's prelude is wrapped in a namespace of its own
    for header in load_manifest().headers:
        parts = []
        for i, name in enumerate(header.provides):
            text = assemble([name], isa)
            undefine = "".join(
                f"#undef {m}\n" for m in set(re.findall(r"^ *#define (GY_\w+)", text, re.MULTILINE))
            )
            parts.append(f"namespace n{i} {{\n{text}\n}}\n{undefine}")
        done = compile_text("".join(parts), isa, "-fsyntax-only")
        assert done.returncode == 0, (header.name, done.stderr[:2000])


@pytest.mark.skipif(shutil.which("clang++") is None, reason="there is no clang++ here")
@pytest.mark.parametrize("isa", Isa, ids=lambda isa: isa.name.lower())
def test_clang_compiles_the_whole_prelude(isa):
    text = assemble(public_names(), isa) + KERNEL
    target = ["--target=aarch64-linux-gnu"] if isa is Isa.NEON else []
    flags = ["-x", "c++", "-std=c++17", "-fsyntax-only", "-w", *isa.flags]
    command = ["clang++", *target, *flags, "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]


def test_assembly_depends_only_on_the_set_of_names():
    names = ["gy_tanh", "gy_vload", "gy_hsum", "gy_store"]
    first = assemble(names, Isa.AVX512)
    assert assemble(list(reversed(names)) + names, Isa.AVX512) == first
    assert assemble(frozenset(names), Isa.AVX512) == first


def test_only_needed_sections_are_taken():
    text = assemble({"gy_add", "gy_vload", "gy_store"}, Isa.AVX2)
    assert "gy_add" in text
    for absent in ("gy_exp", "gy_philox", "gy_atomic_add", "gy_transpose", "gy_to_i8", "gy_floor"):
        assert absent not in text
    assert len(text) < 10400


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownPreludeName, match=r"GY-CPP-101.*gy_nonesuch"):
        assemble({"gy_exp", "gy_nonesuch"}, Isa.AVX2)


def test_names_are_found_in_kernel_text():
    result = names_in(KERNEL)
    assert {"gy_erf", "gy_exp", "gy_vload_n", "gy_bf16"} <= result
    assert "kernel" not in result


def test_manifest_names_its_headers_and_their_needs():
    names = public_names()
    assert len(names) == len(set(names))


def test_the_readme_lists_exactly_the_names_that_sections_provide():
    readme = (resources.files("gyrator_codegen_cpp.prelude") / "README.md").read_text()
    listed = set(re.findall(r"\b(?:gy|omp|GOMP)_\w+", readme))
    functions = {n for n in public_names() if n.startswith(("gy_", "omp_", "GOMP_"))}
    assert listed == functions


@pytest.mark.parametrize("level", ["-O2", "-O3"])
@pytest.mark.parametrize("isa", Isa, ids=lambda isa: isa.name.lower())
def test_a_kernel_builds_and_its_time_is_shown(isa, level, tmp_path, capsys):
    text = assemble(names_in(KERNEL), isa) + KERNEL
    start = time.perf_counter()
    done = compile_text(text, isa, level, *FLAGS, "-o", str(tmp_path / "k.so"))
    elapsed = time.perf_counter() - start
    assert done.returncode == 0, done.stderr[:2000]
    with capsys.disabled():
        sys.stdout.write(f" [{isa.name} {level}: {len(text)} characters, {1e3 * elapsed:.0f} ms]")
