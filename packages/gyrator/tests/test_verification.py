"""The option `verify`: sound kernels pass, and whatever is planted in their text is found."""

import re
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve, frozen
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

from gyrator import explain
from gyrator.cli.main import main
from gyrator.config import Config
from gyrator.engine.pipeline import Stages
from gyrator.session import Session
from gyrator.targets import TargetDefinition
from gyrator.targets.cpu import CPU, cpu_target
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.diagnostics import VerificationError
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.parse import parse
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target

ON = {"verify": "kernels", "strict": True, "progress": False}


def work(x: Tensor, z: Tensor, table: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    """Give kernels of several kinds: pointwise, strided, folds, a gather, a scatter."""
    return (
        (x * 2.5 - z).mT.contiguous(),
        x.sum(1) - x.amax(1),
        table[index] + 1,
        torch.zeros_like(table).index_add(0, index, x[:7, :4]),
        torch.where(x > 0, x, 7.0)[1:],
    )


def arguments() -> tuple[Tensor, ...]:
    """Return arguments of `work`, 0 among the numbers that become indices."""
    return torch.randn(9, 37), torch.randn(37), torch.randn(11, 4), torch.arange(7)


@frozen
class Broken(CppBackend):
    """Writes C++ kernels with one thing wrong."""

    old: str
    new: str

    @property
    def content_hash(self) -> str:
        """Another for each fault."""
        return sha256(f"{self.old} {self.new}".encode()).hexdigest()

    def emit_tiled(self, *args: Any) -> tuple[TranslationUnit, ...]:
        """Write the kernels, and change the text of one."""
        units = super().emit_tiled(*args)
        texts = [k.text for u in units for k in u.kernels]
        chosen = next((t for t in texts if re.search(self.old, t)), None)
        assert chosen is not None, "\n".join(texts)
        wrong = re.sub(self.old, self.new, chosen)
        return tuple(evolve(u, text=u.text.replace(chosen, wrong)) for u in units)


FAULTS = {
    "a loop that ends too early": (r"r0 < 37", r"r0 < 36"),
    "a loop that ends too late": (r"i1 < 4;", r"i1 < 5;"),
    "operands in the wrong order": (r"gy_sub\(v2, v3\)", r"gy_sub(v3, v2)"),
    "an operand of another value": (r"gy_mul\(v0, v1\)", r"gy_mul(v0, v0)"),
    "a constant off by its last bit": (r"= 2\.5f", r"= 2.5000002f"),
    "a stride": (r"p2_at \+ 9\*r0", r"p2_at + 8*r0"),
    "an offset": (r"p0 \+ 37\*i0;", r"p0 + 36*i0;"),
    "no store": (r"gy_store\(p4 \+ i0, v11\);", r""),
    "a store behind the end": (r"gy_store\(p4 \+ i0,", r"gy_store(p4 + i0 + 1,"),
    "a store before the start": (r"gy_store\(p4 \+ i0,", r"gy_store(p4 + i0 - 1,"),
    "a store to an input": (r"gy_store\(p4 \+ i0,", r"gy_store(p1, 0.0f); gy_store(p4 + i0,"),
    "a maximum that starts at 0": (r"\(sf32\)-__builtin_inff\(\)", r"(sf32)0.0f"),
    "a sum that starts at 1": (r"v5_acc = \(sf32\)0\.0f", r"v5_acc = (sf32)1.0f"),
    "the other fold": (r"gy_maximum\(v6_acc", r"gy_add(v6_acc"),
    "NaN let through": (r"gy_select\(v8,", r"gy_select((sbool)(v8 || v0 != v0),"),
    "a comparison": (r"gy_gt\(v0, v7\)", r"gy_ge(v0, v7)"),
    "a gather from elsewhere": (r"p1 \+ 4\*t0", r"p1 + 4*t0 + 1"),
    "an index that does not wrap": (r"\+ 4\*t1", r"+ 4*((t1 + 1) % 11)"),
    "a scatter that forgets": (r"gy_add\(gy_sload\(p4_at \+ i1\), v4\)", r"v4"),
    "a check that always fails": (r"return 2;", r"return 2; return 2;"),
    "zeros that stop early": (
        r"(gy_clear\(.*), \(i0_high - i0_low\)",
        r"\1, (i0_high - i0_low - 1)",
    ),
}


def test_sound_kernels_agree_with_their_ir() -> None:
    explanation = explain(work, *arguments(), options={**ON, "cache": False})

    assert explanation.verified == explanation.kernels > 0
    assert not explanation.unverified
    assert f"{explanation.kernels} of {explanation.kernels} kernels match their IR" in str(
        explanation
    )


def test_nothing_is_verified_unless_asked() -> None:
    explanation = explain(work, *arguments(), options={"progress": False})

    assert (
        explanation.verified == 0 and not explanation.unverified and "agree" not in str(explanation)
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> HostProgram:
    """The host program of `work`."""
    folder = tmp_path_factory.mktemp("trace")
    options = {"trace_dir": str(folder), "cache": False}
    torch._dynamo.reset()
    with Session(options=options, targets={"cpu": (CPU, apart())}) as session:
        torch.compile(work, backend=session.backend, dynamic=False)(*arguments())
    (text,) = folder.glob("*/host.gy")
    return parse(text.read_text())


def apart() -> Target:
    """Return a target that launches each kernel by itself."""
    target = cpu_target("plain", 2)
    return evolve(target, heuristics=evolve(target.heuristics, together_elements=0))


def broken(name: str) -> tuple[TargetDefinition, Target]:
    """Return the target whose kernels have this fault."""
    return evolve(CPU, kernels=Broken(*FAULTS[name])), apart()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, config: Config, program: HostProgram, tmp_path: Path) -> None:
    with Session(options=ON, config=config, targets={"cpu": broken(name)}) as session:
        pipeline = Stages(session.engine(session.options).context)
        with pytest.raises(
            VerificationError, match=r"GY-VERIFY-011: kernel .* does not match its IR"
        ):
            pipeline.verify(program, tmp_path)


def test_a_fault_in_a_group_is_found(config: Config) -> None:
    def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin() * 2.5, y.sum(1)

    language = Broken(r"_acc = \(sf32\)0\.0f", "_acc = (sf32)1.0f")
    target = evolve(CPU, kernels=language), cpu_target("plain", 2)
    torch._dynamo.reset()
    with Session(options=ON, config=config, targets={"cpu": target}) as session:
        compiled = torch.compile(two, backend=session.backend, dynamic=False)
        with pytest.raises(BackendCompilerFailed, match=r"m1_p1\[0\] is"):
            compiled(torch.randn(40), torch.randn(4, 9))


def test_a_wrong_kernel_is_an_error_that_tells_where(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**ON, "trace_dir": str(tmp_path), "strict": False}
    torch._dynamo.reset()
    with Session(options=options, config=config, targets={"cpu": broken("a stride")}) as session:
        compiled = torch.compile(work, backend=session.backend, dynamic=False)
        with pytest.raises(BackendCompilerFailed, match="GY-VERIFY-011") as raised:
            compiled(*arguments())
    message = str(raised.value)
    assert "%clone = aten.clone" in message
    assert "(x * 2.5 - z).mT.contiguous()" in message
    (text,) = (Path(p) for p in re.findall(r"in: +(\S+\.gy), ", message))
    assert text.is_relative_to(tmp_path)
    assert main(["verify", str(text)]) == 0  # by the sound backend
    assert " runs" in capsys.readouterr().out


def test_without_the_tools_the_error_says_what_to_install(
    config: Config, program: HostProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gyrator_testing.kernels.validate", None)
    with Session(options=ON, config=config) as session:
        pipeline = Stages(session.engine(session.options).context)
        with pytest.raises(VerificationError, match=r"GY-VERIFY-010[\s\S]*gyrator\[verify\]"):
            pipeline.verify(program)
