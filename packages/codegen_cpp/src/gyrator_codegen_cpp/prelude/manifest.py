"""The index of prelude sections by provided names, and the assembly of a minimal prelude."""

import enum
import functools
import re
from collections.abc import Collection, Mapping
from importlib import resources

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"(?:gy|GY|omp|GOMP)_\w+")
"""Names of the prelude other than types, which are in every prelude."""
_MACRO = re.compile(r"^#(define|undef) (GY_\w+)", re.MULTILINE)
_FUNCTION = re.compile(r"GY_FN [\w<>*& ]*?\b(gy_\w+)\(")
_COMMENT = re.compile(r"^\s*//.*\n", re.MULTILINE)

#: Order in which the files are read. In a prelude, a section follows the sections that it needs.
_HEADERS = (
    "types memory compare select convert fma arith round half f8 kernels exp log tanh wide "
    "erf trig atrig pow special fmod int masked gather reduce philox omp atomic transpose "
    "attention loops gemm convolution threads sort"
).split()


class UnknownPreludeName(GyratorError):
    """A requested name is not provided by any section (``GY-CPP-101``)."""


class Isa(enum.Enum):
    """The instruction sets that the prelude supports. The value is that of the macro ``GY_ISA``."""

    AVX512 = 512
    AVX2 = 256
    NEON = 128
    PLAIN = 0

    @classmethod
    def of(cls, arch: str) -> "Isa":
        """Return the ISA of a `Target.arch`, `PLAIN` for an unknown one."""
        return cls.__members__.get(arch.upper(), cls.PLAIN)

    @property
    def lanes(self) -> int:
        """Lanes in a vector of 32-bit elements (``GY_LANES``); 1 without vectors."""
        return {Isa.AVX512: 16, Isa.AVX2: 8, Isa.NEON: 4, Isa.PLAIN: 1}[self]

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler's machine flags for this ISA.

        Outlined atomic operations are functions of libgcc, which kernels are not linked with.
        """
        return {
            Isa.AVX512: tuple("-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c".split()),
            Isa.AVX2: ("-mavx2", "-mfma", "-mf16c"),
            Isa.NEON: ("-mno-outline-atomics",),
            Isa.PLAIN: (),
        }[self]


_STAND_INS = {Isa.NEON: "neon", Isa.PLAIN: "plain"}
"""Headers whose sections replace those of other headers, by instruction set."""


@frozen
class Section:
    """A section of a header."""

    provides: tuple[str, ...]
    """The names in its first line, which other sections and kernels may use."""
    defines: tuple[str, ...]
    """The names of functions and macros that it defines."""
    needs: tuple[str, ...]
    """Names that it needs beside those in its text."""
    text: str


@frozen
class Header:
    """A file in ``headers/``."""

    name: str
    sections: tuple[Section, ...]

    @property
    def provides(self) -> tuple[str, ...]:
        """All names of the header, in the order of the file."""
        return tuple(name for section in self.sections for name in section.provides)


@frozen(eq=False)
class Manifest:
    """All headers, and the section that provides each name."""

    headers: tuple[Header, ...]
    sections: tuple[Section, ...]
    index: Mapping[str, int]


def header_text(name: str) -> str:
    """The text of ``headers/<name>.h``."""
    path = resources.files("gyrator_codegen_cpp.prelude") / "headers" / f"{name}.h"
    return path.read_text(encoding="utf-8")


def _split(text: str) -> list[Section]:
    """Split a header at its ``//%`` lines, and drop comments."""
    sections = []
    for part in re.split(r"^//% ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        provides, _, needs = head.partition(":")
        body = _COMMENT.sub("", body)
        macros = _MACRO.findall(body)
        local = {name for directive, name in macros if directive == "undef"}
        defined = [name for _, name in macros if name not in local] + _FUNCTION.findall(body)
        sections.append(
            Section(
                tuple(provides.split()), tuple(dict.fromkeys(defined)), tuple(needs.split()), body
            )
        )
    return sections


def load_manifest(isa: Isa | None = None) -> Manifest:
    """Read all headers (a few milliseconds, once per process).

    An instruction set may have its own sections, which replace those that provide the same names.
    """
    return _manifest(_STAND_INS.get(isa) if isa is not None else None)


@functools.cache
def _manifest(own: str | None) -> Manifest:
    replaced = {} if own is None else {b.provides: b for b in _split(header_text(own))}
    split = [
        (name, [replaced.pop(b.provides, b) for b in _split(header_text(name))])
        for name in _HEADERS
    ]
    assert not replaced, f"{own}.h stands in for no section: {list(replaced)}"
    sections = tuple(section for _, parts in split for section in parts)
    index = {n: i for i, section in enumerate(sections) for n in section.provides}
    for i, section in enumerate(sections):
        for n in section.defines:
            index.setdefault(n, i)
    headers = tuple(Header(name, tuple(parts)) for name, parts in split)
    return Manifest(headers, sections, index)


def names_in(text: str) -> frozenset[str]:
    """Return the names of the prelude, except types, that occur in C++ text."""
    return frozenset(load_manifest().index.keys() & set(_NAME.findall(text)))


def assemble(names_used: Collection[str], isa: Isa) -> str:
    """Return the smallest prelude that provides ``names_used``, and all types, for ``isa``.

    Raises:
        UnknownPreludeName: for a name that no section provides.
    """
    manifest = load_manifest(isa)
    unknown = sorted(set(names_used) - manifest.index.keys())
    if unknown:
        raise UnknownPreludeName.of(
            code="GY-CPP-101",
            message=f"the C++ prelude has no {', '.join(unknown)}",
            help="emit only names that prelude/README.md lists",
        )
    section_numbers = sorted({manifest.index[n] for n in ("types", *names_used)})
    order = dict.fromkeys(k for number in section_numbers for k in _closure(manifest, number))
    macros = f"#define GY_ISA {isa.value}\n#define GY_LANES {isa.lanes}\n"
    macros += f"#define GY_VEC {int(isa.lanes > 1)}\n"
    return macros + "".join(manifest.sections[i].text for i in order)


@functools.cache
def _closure(manifest: Manifest, number: int) -> tuple[int, ...]:
    """Return a section's transitive dependences in topological order, itself last."""
    section = manifest.sections[number]
    names = {*_WORD.findall(section.text), *section.needs} & manifest.index.keys()
    needs = sorted({manifest.index[n] for n in names} - {number})
    return (*dict.fromkeys(k for need in needs for k in _closure(manifest, need)), number)
