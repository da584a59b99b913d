"""Plays those who build on Gyrator, from installed wheels: `python -P ci/journeys.py [vendor ...]`.

Each journey runs in an empty folder and sees no source of ours: what it reads of the repository is
what its player would, pages of the manual and the template of a target.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from playwright.sync_api import Error, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PROGRAM = """loop.program 1 @rows
  in n: size s0
  in x: f32[s0, 8] strides [8, 1] on cpu
  buffer y: f32[s0, 8] strides [8, 1] on cpu
  buffer z: f32[s0] strides [1] on cpu
  pointwise op0 (i0 < s0, i1 < 8)
    a = load x[8*i0 + i1]
    b: f32 = exp a
    store y[8*i0 + i1], b
  reduction op1 (i0 < s0) over (r0 < 8)
    a = load y[8*i0 + r0]
    s: f32 = reduce.sum a
    store z[i0], s
  return z
"""


MODEL = """import sys

import torch
from torch import nn

def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8))
    def step(x):
        h = model(x)
        torch._dynamo.graph_break()
        loss = h.softmax(-1).square().sum() + torch.linalg.det(x[:4, :4])
        loss.backward()
        return loss
    return step, torch.randn(32, 64, requires_grad=True)

if __name__ == "__main__":
    step, x = make()
    backend = sys.argv[1] if len(sys.argv) > 1 else "gyrator"
    print(torch.compile(step, backend=backend)(x).item())
"""
GUARDS = """import torch

def logs(x):
    return torch.log(x - 2.0)

for options in ({"nan_asserts": True}, {"verify": "kernels"}, {"memory_asserts": True}):
    compiled = torch.compile(logs, backend="gyrator", options=options)
    try:
        compiled(torch.ones(4))
        print("no error", options)
    except Exception as error:
        print(type(error).__name__, error)
    torch._dynamo.reset()
"""
SHOTS = ROOT / ".nox" / "journeys-shots"
"""Where pictures are kept."""
WIDTHS, SCHEMES = (500, 1400), ("dark", "light")


class FailedError(Exception):
    """A step of a journey."""


def run(folder: Path, *command: str, expected: int = 0, prints: str = "", **variables: str) -> str:
    """Run a step, `variables` in its environment; return what it printed.

    Raises:
        FailedError: another exit status, or output without what it has to say.
    """
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"PATH": path, "GYRATOR_CACHE_DIR": str(folder / "cache")}
    environment |= variables
    print("$", " ".join(command), flush=True)
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=900, check=False,
    )  # fmt: skip
    if done.returncode != expected or prints not in done.stdout:
        raise FailedError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def pages(folder: Path, *names: str) -> None:
    """Run the examples of pages of the manual."""
    paths = [str(ROOT / name) for name in names]
    run(folder, sys.executable, "-P", str(ROOT / "ci" / "run_doc_examples.py"), *paths,
        prints="0 pages failed")  # fmt: skip


def vendor(folder: Path) -> None:
    """Begin a target from the template, compile, search, plant a bug, and run the suite."""
    answers = ("device=toy", "package=gyrator_acme", "start=gyrator_toy.device:start")
    data = [part for answer in answers for part in ("-d", answer)]
    template = str(ROOT / "templates" / "target")
    wrong = ("-d", "device=my-dev", template, "wrong")
    run(folder, "copier", "copy", "--defaults", *wrong, expected=1, prints="is a word, such as")
    run(folder, "copier", "copy", "--defaults", *data, template, "acme")
    acme = folder / "acme"
    more = ("--no-deps", "--no-build-isolation", "-e", ".")
    run(acme, sys.executable, "-m", "pip", "install", "-q", *more)
    try:
        run(acme, sys.executable, "-m", "pytest", "-q", "tests", prints="3 passed")
        search = (sys.executable, "-m", "gyrator_testing", "kernels", "--target", "gyrator_acme")
        run(acme, *search, "--count", "60", "--points", "500", prints="random kernels compared")
        suite = (sys.executable, "-m", "gyrator_conformance", "--target", "gyrator_acme")
        chosen = ("--wrapper", "python", "-k", "mlp and static and float32")
        run(acme, *suite, *chosen, "--json", "cells.json", prints="100.0 %")
        language = acme / "src" / "gyrator_acme" / "language.py"
        text = language.read_text()
        language.write_text(text.replace('"sub": "-"', '"sub": "+"'))
        run(acme, *search, "--count", "60", "--points", "500", expected=1, prints="= sub ")
        (file,) = (acme / "kernel-faults").glob("*.gy")
        run(acme, str(BIN / "gyrator"), "verify", str(file), expected=2, prints="GY-VERIFY-011")
        language.write_text(text)
        run(acme, str(BIN / "gyrator"), "verify", str(file), prints="runs")
    finally:
        run(acme, sys.executable, "-m", "pip", "uninstall", "-q", "-y", "gyrator-acme")


def engineer(folder: Path) -> None:
    """Write passes, patterns and rules, and look at what passes do to a text."""
    pages(
        folder, "docs/how-to/custom-passes.md", "docs/how-to/add-a-pass.md",
        "docs/how-to/add-a-lowering.md", "docs/from-torchinductor.md",
    )  # fmt: skip
    (folder / "rows.gy").write_text(PROGRAM)
    opt = (str(BIN / "gyrator"), "opt", "rows.gy")
    run(folder, *opt, "--to", "kernel", "--print-changed", prints="kernel k0")
    run(folder, *opt, "--passes", "inline-pointwise", prints="reduction op1")
    run(folder, *opt, "--to", "kernels", prints='extern "C"')
    run(folder, str(BIN / "gyrator"), "verify", "rows.gy", prints="runs")


def researcher(folder: Path) -> None:
    """Use single stages as libraries, and read what the compiler did to a model."""
    names = ("ir", "scheduler", "codegen", "codegen_cpp", "codegen_triton", "lowering")
    pages(folder, *(f"packages/{name}/README.md" for name in (*names, "testing", "wrapper_fx")))
    pages(folder, "docs/tutorial.md", "docs/how-to/read-a-kernel.md")


ARTIFACTS = (
    "gyrator_loop.gy", "gyrator_kernel.gy", "gyrator_host.gy", "gyrator_tile.gy",
    "gyrator_unit0.cpp",
)  # fmt: skip
"""What tlparse shows of ours that has no counterpart in TorchInductor's traces."""
COUNTERPARTS: Mapping[str, str] = {
    "before_pre_grad_graph": "dynamo_output_graph",  # no pass of ours runs before AOTAutograd
    "after_pre_grad_graph": "dynamo_output_graph",
    "before_post_grad_graph": "gyrator_fx.gy",
    "inductor_post_grad_graph": "gyrator_fx_passes.gy",
    "inductor_output_code": "gyrator_output_code",
    "fx_graph_runnable": "gyrator_repro.py",
    "fx_graph_cache_miss": "gyrator_cache_miss.json",
    "aotautograd_cache_miss": "gyrator_cache_miss.json",
    "inductor_provenance_tracking_node_mappings": "gyrator_graph.json",
    "inductor_provenance_tracking_kernel_stack_traces": "gyrator_graph.json",
}
"""Artifacts of TorchInductor's traces, each with the one of ours that shows the same."""


def _artifacts(folder: Path, backend: str) -> set[str]:
    """Return the names of what tlparse shows of a backend's trace, without numbers and hashes."""
    log, caches = folder / f"log-{backend}", str(folder / f"caches-{backend}")
    run(folder, sys.executable, "model.py", backend, TORCH_TRACE=str(log), GYRATOR_CACHE_DIR=caches,
        TORCHINDUCTOR_CACHE_DIR=caches, INDUCTOR_PROVENANCE="1")  # fmt: skip
    (file,) = log.iterdir()
    run(folder, "tlparse", str(file), "-o", f"parsed-{backend}", "--no-browser")
    names = {p.stem for p in (folder / f"parsed-{backend}").glob("-_*/*")}
    return {re.sub(r"(_[a-z0-9]{52})?(_\d+)?(_readable)?$", "", name) for name in names}


def tools(folder: Path) -> None:
    """Look into a training step with PyTorch's own tools and with ours; then shrink a failure."""
    (folder / "model.py").write_text(MODEL)
    (folder / "guards.py").write_text(GUARDS)
    model, gyrator = (sys.executable, "model.py"), (sys.executable, "-m", "gyrator")
    names = "+gyrator,output_code,kernel_code,schedule,fusion,perf_hints,recompiles"
    run(folder, *model, prints="compiled forward graph", TORCH_LOGS=names)
    run(folder, *model, prints="loaded forward graph", TORCH_LOGS="+gyrator")
    ours = _artifacts(folder, "gyrator")
    missing = [name for name in ARTIFACTS if name not in ours]
    for name in _artifacts(folder, "inductor") - ours:
        missing += [] if COUNTERPARTS.get(name) in ours else [name]
    if missing:
        raise FailedError(f"tlparse shows no {missing}, but {sorted(ours)}")
    traces = folder / "traces"
    run(folder, *model, GYRATOR_TRACE_DIR=str(traces))
    (first, *_) = sorted(traces.glob("*_forward"))
    run(first, sys.executable, "repro.py", prints="matches eager mode")
    run(folder, *gyrator, "bisect", str(first), prints="all stages and passes are correct")
    small = ("minify", str(first), "--for", "error", "-o", "small")
    run(folder, *gyrator, *small, prints="1 calls", CXX="false")
    run(folder / "small", sys.executable, "repro.py", expected=1, prints="error: GY-", CXX="false")
    torch_debug = {"TORCH_COMPILE_DEBUG_DIR": str(folder), "GYRATOR_STRICT": "1", "CXX": "false"}
    off = {**torch_debug, "GYRATOR_CACHE": "0"}
    for after, written in (("dynamo", "minifier_launcher.py"), ("aot", "minify.py")):
        run(folder, *model, expected=1, prints=written, TORCHDYNAMO_REPRO_AFTER=after, **off)
    output = run(folder, sys.executable, "guards.py", prints="torch.log(x - 2.0)")
    if output.count("no error") != 2:
        raise FailedError(f"guards: {output}")


def reports(folder: Path) -> None:
    """Read what the compiler tells of a function: as text, as data, and as a page in a browser."""
    (folder / "model.py").write_text(MODEL)
    gyrator = (sys.executable, "-m", "gyrator")
    run(folder, *gyrator, "--version", prints="gyrator ")
    run(folder, *gyrator, "doctor", prints="compiling a function")
    json.loads(run(folder, *gyrator, "options", "--json"))
    run(folder, *gyrator, "explain", "model.py:make", prints="graph")
    output = run(folder, *gyrator, "explain", "model.py:make", "--json")
    data = json.loads(output[output.index("{\n") :])
    if not data["cost"] or not data["memory"] or not data["breaks"]:
        raise FailedError(f"explain --json: {output}")
    run(folder, *gyrator, "report", "model.py:make", "--runs", "3", "-o", "report.html")
    pictures(folder, folder / "report.html", "report")
    config = str(ROOT / "mkdocs.yml")
    run(ROOT, sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-f", config, "-d",
        str(folder / "site"))  # fmt: skip
    search(folder / "site" / "how-to" / "read-a-kernel.html", "freezing")
    for page in ("index", "options", "how-to/read-a-kernel", "benchmarks"):
        pictures(folder, folder / "site" / f"{page}.html", page.rpartition("/")[2])


def search(page: Path, word: str) -> None:
    """Search the manual from one of its pages, which lies in a folder and not on a server.

    Raises:
        FailedError: nothing is found, or the page asks the network for something.
    """
    requests: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_browser(), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": max(WIDTHS), "height": 900})
        tab.on("request", lambda request: requests.append(request.url))
        try:
            tab.goto(page.as_uri())
            tab.fill("input[name=query]", word)
            tab.wait_for_selector(f".md-search-result__item a[href*={word}]")
        except Error as error:
            raise FailedError(f"searching for {word}: {error}") from error
        finally:
            browser.close()
    if outside := [url for url in requests if url.startswith("http")]:
        raise FailedError(f"{page.name} asks for {outside}")


def _browser() -> str:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise FailedError("there is no browser: Debian's chromium, or google-chrome")
    return program


def pictures(folder: Path, page: Path, name: str) -> None:
    """Open a page in a browser, narrow and wide, by day and by night, and keep what it shows.

    Raises:
        FailedError: the page is wider than the window.
    """
    SHOTS.mkdir(parents=True, exist_ok=True)
    common = (_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    for width in WIDTHS:
        # A frame is as wide as it is told; windows have a least width.
        frame = folder / f"{name}-{width}.html"
        frame.write_text(
            f'<body style="margin:0"><iframe id="f" src="{page.as_uri()}" '
            f'style="border:0;width:{width}px;height:2200px"></iframe><script>onload=()=>{{'
            "const d=f.contentDocument.documentElement;"
            'document.title="wide "+d.scrollWidth+" of "+d.clientWidth}</script>'
        )
        local = "--allow-file-access-from-files"
        dom = run(folder, *common, local, "--dump-dom", frame.as_uri())
        title = dom.partition("<title>wide ")[2].partition("</title>")[0]
        wide, _, room = title.partition(" of ")
        if not room or int(wide) > int(room):
            raise FailedError(f"{page.name} is {wide or 'of unknown'} wide in {room or width}")
        for number, scheme in enumerate(SCHEMES):
            picture = SHOTS / f"{name}-{width}-{scheme}.png"
            look = (
                f"--blink-settings=preferredColorScheme={number}",
                f"--window-size={width},2200",
            )
            run(folder, *common, *look, f"--screenshot={picture}", page.as_uri())


JOURNEYS: Mapping[str, Callable[[Path], None]] = {
    "vendor": vendor,
    "engineer": engineer,
    "researcher": researcher,
    "tools": tools,
    "reports": reports,
}


def main(names: list[str]) -> int:
    """Make the journeys named, or all; return 1 if one fails."""
    spec = find_spec("gyrator")
    assert spec is not None and "site-packages" in str(spec.origin), "not the wheel"
    failed = 0
    for name in names or JOURNEYS:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                JOURNEYS[name](Path(folder))
                outcome = "arrived"
            except FailedError as error:
                outcome, failed = f"FAILED\n{error}", failed + 1
        print(f"{name}: {outcome} ({time.perf_counter() - start:.0f} s)", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
