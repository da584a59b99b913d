"""One subject of bench/cpu_peers.py in a process of its own: `python bench/_peer.py SUBJECT MODEL
STEP DTYPE THREADS FOLDER`.

It builds, says how far its result is from eager's in float64, and how far that of eager mode in
float32 is, and then, for each line with a number of calls, answers with the seconds of one call: by
the clock, and of the process. To the line `memory` it answers with the peak of a call in bytes.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from _peer_models import build
from torch import Tensor, nn

Call = Callable[[], Any]


def _torch(name: str, model: nn.Module, step: str, inputs: tuple[Tensor, ...]) -> Call:
    """Return a call of the model as it is, or behind `torch.compile`."""
    weights = list(model.parameters())

    def loss(*inputs: Tensor) -> Tensor:
        result: Tensor = model(*inputs).float().square().mean()
        return result

    compiled = _compiled(name, loss if step == "training" else model)
    if step == "inference":
        return lambda: compiled(*inputs)

    def train() -> tuple[Tensor, ...]:
        result = compiled(*inputs)
        return (result, *torch.autograd.grad(result, weights))

    return train


def _compiled(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    compiler, *ways = name.split()
    if compiler == "eager":
        return function
    frozen = "frozen" in ways or "tuned" in ways
    if compiler == "inductor":
        import torch._inductor.config as settings  # the peer's own switches

        settings.freezing = frozen
        settings.max_autotune = "tuned" in ways
        return torch.compile(function)
    numerics = "fast" if "fast" in ways else "eager"
    options = {"strict": True, "progress": False, "freezing": frozen, "numerics": numerics}
    return torch.compile(function, backend="gyrator", options=options)


def _quantised(model: nn.Module, inputs: tuple[Tensor, ...]) -> nn.Module:
    """Return the model in `int8`, as PyTorch quantises exported models for x86."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, inputs).module(), quantizer)
    prepared(*inputs)
    return convert_pt2e(prepared)


def _package(folder: Path, model: nn.Module, inputs: tuple[Tensor, ...]) -> Call:
    """Return a call of a package with frozen weights, which runs without Dynamo."""
    import gyrator.aot

    options = {"package": folder / "model.gya", "options": {"freezing": True}}
    package = gyrator.aot.load(gyrator.aot.compile(model, inputs, **options))
    return lambda: package(*inputs)


def _exported(folder: Path, dtype: str, model: nn.Module, inputs: tuple[Tensor, ...]) -> bytes:
    """Return the model as ONNX, from a file that the other runtime may have left."""
    kept = folder.parent / "model.onnx"
    if not kept.exists():
        torch.onnx.export(model, inputs, kept, dynamo=True, verbose=False, external_data=False)
        if dtype == "int8":
            _quantise(kept, inputs)
    return kept.read_bytes()


def _quantise(exported: Path, inputs: tuple[Tensor, ...]) -> None:
    """Let ONNX Runtime quantise the products and convolutions of a file."""
    import onnx
    from onnxruntime import quantization

    class Samples(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            names = [i.name for i in onnx.load(exported).graph.input]
            self.left = [dict(zip(names, [x.numpy() for x in inputs], strict=True))]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    kinds, to = ["Conv", "Gemm", "MatMul"], exported.with_name("quantised.onnx")
    quantization.quantize_static(
        exported, to, Samples(), per_channel=True, op_types_to_quantize=kinds
    )
    to.replace(exported)


def _onnxruntime(threads: int, dtype: str, exported: bytes, inputs: tuple[Tensor, ...]) -> Call:
    import onnxruntime

    if dtype == "bfloat16":
        raise NotImplementedError("its CPU kernels have no bfloat16")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(exported, options, providers=providers)
    named = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: torch.from_numpy(session.run(None, named)[0])


def _openvino(threads: int, dtype: str, exported: bytes, inputs: tuple[Tensor, ...]) -> Call:
    import openvino

    core = openvino.Core()
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32",
    }
    compiled = core.compile_model(core.read_model(exported), "CPU", settings)
    request, arrays = compiled.create_infer_request(), [x.numpy() for x in inputs]
    return lambda: torch.from_numpy(request.infer(arrays, share_inputs=True)[0])


RUNTIMES = MappingProxyType({"onnxruntime": _onnxruntime, "openvino": _openvino})
"""These read the model in float32, and compute in the dtype themselves."""


def _made(subject: str, name: str, step: str, dtype: str, threads: int, folder: Path) -> Call:
    """Return a call of the subject, after whatever it does before the first one."""
    narrow = dtype == "bfloat16" and subject not in RUNTIMES
    wide = torch.float64 if dtype == "float64" else torch.float32
    model, inputs = build(name, torch.bfloat16 if narrow else wide, step)
    if subject in RUNTIMES:
        return RUNTIMES[subject](threads, dtype, _exported(folder, dtype, model, inputs), inputs)
    if dtype == "int8" and subject != "eager":
        model = _quantised(model, inputs)
    if subject == "gyrator package":
        return _package(folder, model, inputs)
    return _torch(subject, model, step, inputs)


def _numbers(result: Any) -> Tensor:
    parts = result if isinstance(result, tuple) else (result,)
    return torch.cat([part.detach().double().flatten() for part in parts])


def main(subject: str, name: str, step: str, dtype: str, threads: int, folder: Path) -> None:
    """Build a subject and time it as often as is asked for."""
    answer = sys.stdout
    sys.stdout = sys.stderr  # exporters talk
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.set_grad_enabled(step == "training"):
        eager = partial(_made, "eager", name, step)
        wanted = _numbers(eager("float64", threads, folder)())

        def error(result: Any) -> float:
            return float((_numbers(result) - wanted).abs().max() / wanted.abs().max())

        told = {"eager": error(eager("float32", threads, folder)())}
        run = _made(subject, name, step, dtype, threads, folder)
        for _ in range(3):
            found = run()
        print(json.dumps({**told, "error": error(found)}), file=answer, flush=True)
        for line in sys.stdin:
            if line.strip() == "memory":
                from _memory import peak_of  # imports Gyrator, which others are timed without

                print(peak_of(run), file=answer, flush=True)
                continue
            calls = int(line)
            wall, process = time.perf_counter(), time.process_time()
            for _ in range(calls):
                run()
            spent = time.perf_counter() - wall, time.process_time() - process
            print(json.dumps([s / calls for s in spent]), file=answer, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]), Path(sys.argv[6]))
