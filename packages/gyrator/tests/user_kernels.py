"""Triton kernels as users write them, and launches of them as PyTorch traces them."""

import triton
import triton.language as tl
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
)
from torch.fx.experimental.proxy_tensor import make_fx

FACTOR: tl.constexpr = 3.0
OFFSET = tl.constexpr(1)


@triton.jit
def scaled(a, factor: tl.constexpr):
    """Give `a` times 'factor'; '''three quotes''' are nothing special."""
    return a * factor


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    """Write x times 3 plus 1.

    "Quotes", '''of all kinds''', and a \\ do no harm.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n

    tl.store(y + at, scaled(tl.load(x + at, inside), FACTOR) + OFFSET, inside)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 32}, num_warps=2), triton.Config({"BLOCK": 64}, num_warps=4)],
    key=["n"],
    restore_value=["y"],
)
@triton.jit
def tuned(x, y, n, BLOCK: tl.constexpr, MODE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n) + tl.load(y + at, at < n)
    value = value * 2 if MODE == "double" else value.to(MODE)
    tl.store(y + at, value, at < n)


@triton.jit
def hidden(descriptor, other, n):
    descriptor.atomic_add([0], tl.zeros((16,), tl.float32))


def _other_scaled():
    @triton.jit
    def scaled(a, factor: tl.constexpr):
        return a + factor

    return scaled


other_scaled = _other_scaled()


@triton.jit
def ambiguous(x):
    tl.store(x, scaled(other_scaled(tl.load(x), 2), 3))


UNKNOWN = object()
MAIN = __import__("__main__")


def reads_object(x):
    """Read what no text can say."""
    tl.store(x, UNKNOWN)


def reads_main(x):
    """Read another module that is gone when the text runs."""
    tl.store(x, MAIN.x)


def launch(kernel, grids, constants, written, tma=None, **kwargs):
    """Launch a kernel as a traced graph does; return what it wrote, by name."""
    return triton_kernel_wrapper_functional(
        kernel_idx=kernel_side_table.add_kernel(kernel),
        constant_args_idx=kernel_side_table.add_constant_args(constants),
        grid=grids,
        tma_descriptor_metadata=tma or {},
        kwargs=kwargs,
        tensors_to_clone=list(written),
    )


def traced(function, *inputs, dynamic=False):
    """Return the graph that AOTAutograd would hand over."""
    mode = "symbolic" if dynamic else "fake"
    return make_fx(function, tracing_mode=mode)(*inputs)
