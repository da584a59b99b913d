"""Images resized by interpolation, and their gradients, against eager."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F

aten = torch.ops.aten
MODES = {3: ("linear",), 4: ("bilinear", "bicubic"), 5: ("trilinear",)}


def resized(x):
    """Return an image resized in many ways, some of them to more than a vector of columns."""
    results = []
    for mode in MODES[x.dim()]:
        for corners, size in ((True, (3, 19, 37)), (False, (2, 1, 7))):
            own = size[-(x.dim() - 2) :]
            results.append(F.interpolate(x, size=own, mode=mode, align_corners=corners))
        results.append(F.interpolate(x, scale_factor=1.7, mode=mode))
        results.append(F.interpolate(x, scale_factor=0.6, mode=mode, recompute_scale_factor=True))
    return results


def image(rank, dtype=torch.float32, batch=2):
    return torch.randn((batch, 3, 4, 9, 18)[:2] + (4, 9, 18)[5 - rank :]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rank", MODES)
def test_sizes_and_scales(session, rank, dtype):
    x = image(rank, dtype)
    want = resized(x)
    if dtype is torch.bfloat16:  # Eager rounds weights and sums, too.
        want = [one.to(dtype) for one in resized(x.double())]
    torch.testing.assert_close(torch.compile(resized, backend=session.backend)(x), want)


def test_strides_and_extents_of_one_and_none(session):
    def all_of(images):
        return [F.interpolate(x, size=(5, 21), mode=m) for x in images for m in MODES[4]]

    x = image(4)
    images = [x.mT, x[:, :, ::2, ::3], x[:, :, :1], x[..., :1], x[:0], x.flip(0)[:1]]
    images.append(x.contiguous(memory_format=torch.channels_last))
    got = torch.compile(all_of, backend=session.backend)(images)
    torch.testing.assert_close(got, all_of(images))


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_any_size(session, mode):
    def run(x, like):
        return F.interpolate(x, size=like.shape[-2:], mode=mode) * 2

    compiled = torch.compile(run, backend=session.backend, dynamic=True)
    for size, out in (((9, 18), (19, 37)), ((30, 7), (11, 50)), ((3, 64), (64, 21))):
        x, like = torch.randn(2, 3, *size), torch.empty(out)
        torch.testing.assert_close(compiled(x, like), run(x, like))


@pytest.mark.parametrize("rank", MODES)
def test_gradients(session, rank):
    def run(x):
        size = (3, 5, 21)[-(x.dim() - 2) :]
        return [F.interpolate(x, size=size, mode=mode) for mode in MODES[rank]]

    x = image(rank, torch.float64).requires_grad_()
    want, got = run(x), torch.compile(run, backend=session.backend)(x)
    weights = [torch.randn_like(one) for one in want]
    gradients = [torch.autograd.grad(results, x, weights) for results in (got, want)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("rank", MODES)
@pytest.mark.parametrize("grads", [False, True], ids=["inference", "training"])
def test_sizes_that_a_scale_keeps_or_doubles(session, rank, grads):
    """Along such an axis, the scale has no effect in eager mode."""

    def run(x):
        scales = {4: 1.2, 9: 1.1, 18: 1.7}
        by = [scales[n] for n in x.shape[2:]]
        results = [F.interpolate(x, scale_factor=by, mode=MODES[rank][0])]
        if rank == 4:
            results += [F.interpolate(x, scale_factor=by) for by in (1.05, (2.05, 1.7))]
            results.append(aten.upsample_bilinear2d(x.detach(), (9, 20), False, 1.1, 1.15))
        return results

    x = image(rank).requires_grad_(grads)
    got, want = torch.compile(run, backend=session.backend)(x), run(x)
    torch.testing.assert_close(got, want)
    if grads:
        factors = [torch.randn_like(one) for one in want[:3]]
        gradients = [torch.autograd.grad(results[:3], x, factors) for results in (got, want)]
        torch.testing.assert_close(*gradients)


def test_kept_or_doubled_sizes_of_whole_ops(session):
    """Rules compute resizing where its formulas are not traced."""

    def run(x):
        nearest = [F.interpolate(x, scale_factor=by) for by in (1.05, (2.05, 1.7))]
        return [*nearest, F.interpolate(x, scale_factor=(1.1, 1.7), mode="bilinear")]

    x = image(4)
    compiled = torch.compile(run, backend=session.backend, options={"numerics": "bitwise"})
    torch.testing.assert_close(compiled(x), run(x))


@pytest.mark.parametrize("rank", MODES)
@pytest.mark.parametrize("grads", [False, True], ids=["inference", "training"])
def test_infinite_neighbours(session, rank, grads):
    """A difference of infinities, which eager does not compute, would be NaN."""

    def run(x):
        mode = MODES[rank][0]
        own, corners = x.shape[2:], tuple(2 * n - 1 for n in x.shape[2:])
        return [
            F.interpolate(x, size=own, mode=mode),
            F.interpolate(x, size=corners, mode=mode, align_corners=True),
            F.interpolate(x, scale_factor=2.0, mode=mode),
            F.interpolate(x, scale_factor=0.5, mode=mode),
            F.interpolate(x, scale_factor=1.7, mode=mode, recompute_scale_factor=True),
        ]

    x = image(rank)
    x.view(-1)[::13] = torch.inf
    x.view(-1)[5::29] = -torch.inf
    x.requires_grad_(grads)
    torch.testing.assert_close(
        torch.compile(run, backend=session.backend)(x), run(x), equal_nan=True
    )


def test_gradients_of_windows_into_scaled_sizes(session):
    """Strides of the saved window have both rounded sizes, of which only one is a new symbol."""

    def run(x, weight, mask):
        image = F.interpolate(x, scale_factor=(1.5, 1.25), mode="bilinear")[:, :, 1:7, 1:8]
        result = F.conv2d(image, weight, padding=1)
        return torch.where(mask, result, F.max_pool2d(result, 3, 1, 1))

    x, weight = torch.randn(2, 3, 6, 8, requires_grad=True), torch.randn(4, 3, 3, 3)
    mask = torch.rand(2, 4, 6, 7) < 0.5
    got = torch.compile(run, backend=session.backend, dynamic=True)(x, weight, mask)
    want = run(x, weight, mask)
    torch.testing.assert_close(got, want)
    factors = torch.randn_like(want)
    (got,) = torch.autograd.grad(got, x, factors)
    torch.testing.assert_close(got, torch.autograd.grad(want, x, factors)[0])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grads", [False, True], ids=["inference", "training"])
def test_pixels_of_bytes_have_eager_s_bits(session, dynamic, grads):
    """Eager interpolates between bytes of few channels in fixed point, and rounds along each
    axis."""

    def run(images):
        results = [aten.upsample_bilinear2d(images[0], (5, 7), False)]
        for x, mode in product(images, MODES[4]):
            results.append(F.interpolate(x, size=(19, 37), mode=mode, align_corners=True))
            results.append(F.interpolate(x, scale_factor=1.7, mode=mode))
        return results

    sizes = [(2, 3, 9, 18), (2, 4, 1, 33), (0, 3, 5, 5)]
    images = [torch.randint(0, 256, size, dtype=torch.uint8) for size in sizes]
    images += [images[0].mT, images[0].contiguous(memory_format=torch.channels_last)]
    images.append(images[1][..., ::2])
    compiled = torch.compile(run, backend=session.backend, dynamic=dynamic)
    with torch.set_grad_enabled(grads):
        for one, want in zip(compiled(images), run(images), strict=True):
            assert torch.equal(one, want), want.shape
            assert one.stride() == want.stride()


def test_bytes_are_resized_between_other_steps(session):
    def run(x, weight):
        y = F.interpolate(x.flip(-1), size=(20, 31), mode="bicubic").float() / 255
        return (F.interpolate(y * weight, scale_factor=2, mode="bicubic") * 2).sum()

    x, weight = torch.randint(0, 256, (2, 3, 9, 18), dtype=torch.uint8), torch.randn(3, 1, 1)
    weight.requires_grad_()
    got, want = torch.compile(run, backend=session.backend)(x, weight), run(x, weight)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(one, weight) for one in (got, want)))
