"""One subject of bench/cpu_peers.py in a process of its own: `python bench/_peer.py SUBJECT MODEL
THREADS FOLDER`.

It builds, says how far its result is from eager's, and then, for each line with a number of calls,
answers with the seconds of one call: by the clock, and of the process.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from _peer_models import build
from torch import Tensor, nn

Call = Callable[[], Any]


def _torch(name: str, model: nn.Module, inputs: tuple[Tensor, ...]) -> Call:
    """Return a call of the model as it is, or behind `torch.compile`."""
    if name == "eager":
        return lambda: model(*inputs)
    frozen = " frozen" in name
    if name.startswith("inductor"):
        import torch._inductor.config as settings  # the peer's own switch

        settings.freezing = frozen
        compiled = torch.compile(model)
    else:
        numerics = "fast" if name.endswith(" fast") else "eager"
        options = {"strict": True, "progress": False, "freezing": frozen, "numerics": numerics}
        compiled = torch.compile(model, backend="gyrator", options=options)
    return lambda: compiled(*inputs)


def _package(folder: Path, model: nn.Module, inputs: tuple[Tensor, ...]) -> Call:
    """Return a call of a package with frozen weights, which runs without Dynamo."""
    import gyrator.aot

    options = {"package": folder / "model.gya", "options": {"freezing": True}}
    package = gyrator.aot.load(gyrator.aot.compile(model, inputs, **options))
    return lambda: package(*inputs)


def _exported(folder: Path, model: nn.Module, inputs: tuple[Tensor, ...]) -> bytes:
    """Return the model as ONNX, from a file that the other runtime may have left."""
    kept = folder.parent / "model.onnx"
    if not kept.exists():
        torch.onnx.export(model, inputs, kept, dynamo=True, verbose=False, external_data=False)
    return kept.read_bytes()


def _onnxruntime(threads: int, exported: bytes, inputs: tuple[Tensor, ...]) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(exported, options, providers=providers)
    named = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: torch.from_numpy(session.run(None, named)[0])


def _openvino(threads: int, exported: bytes, inputs: tuple[Tensor, ...]) -> Call:
    import openvino

    core = openvino.Core()
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = core.compile_model(core.read_model(exported), "CPU", settings)
    request, arrays = compiled.create_infer_request(), [x.numpy() for x in inputs]
    return lambda: torch.from_numpy(request.infer(arrays, share_inputs=True)[0])


RUNTIMES = MappingProxyType({"onnxruntime": _onnxruntime, "openvino": _openvino})


def main(subject: str, name: str, threads: int, folder: Path) -> None:
    """Build a subject and time it as often as is asked for."""
    answer = sys.stdout
    sys.stdout = sys.stderr  # exporters talk
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    model, inputs = build(name)
    with torch.no_grad():
        wanted = model(*inputs)
        if subject in RUNTIMES:
            run = RUNTIMES[subject](threads, _exported(folder, model, inputs), inputs)
        elif subject == "gyrator package":
            run = _package(folder, model, inputs)
        else:
            run = _torch(subject, model, inputs)
        for _ in range(3):
            found = run()
        error = float((found - wanted).abs().max() / wanted.abs().max())
        print(json.dumps({"error": error}), file=answer, flush=True)
        for line in sys.stdin:
            calls = int(line)
            wall, process = time.perf_counter(), time.process_time()
            for _ in range(calls):
                run()
            spent = time.perf_counter() - wall, time.process_time() - process
            print(json.dumps([s / calls for s in spent]), file=answer, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
