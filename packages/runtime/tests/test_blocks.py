import gc
import threading

import pytest
import torch

from gyrator_runtime.blocks import BlockCache


@pytest.fixture
def cache() -> BlockCache:
    return BlockCache(threshold=1024)


def new(cache, n, dtype=torch.float32):
    return cache.allocate((n,), (1,), dtype)


def test_small_tensors_are_not_kept(cache):
    assert new(cache, 255).numel() == 255
    assert cache.held() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.bfloat16])
def test_layout(cache, dtype):
    for size, stride in (((40, 50), (50, 1)), ((40, 50), (1, 40)), ((3, 1, 700), (1000, 9, 1))):
        made = cache.allocate(size, stride, dtype)
        assert (tuple(made.shape), made.stride(), made.dtype) == (size, stride, dtype)
        want = torch.empty_strided(size, stride, dtype=dtype)
        assert made.untyped_storage().nbytes() == want.untyped_storage().nbytes()
        made.fill_(1)
    assert cache.allocate((0, 5000), (5000, 1), dtype).numel() == 0


def test_a_dead_tensors_block_is_used_again(cache):
    first = new(cache, 1000)
    address = first.data_ptr()
    second = new(cache, 1000)
    assert second.data_ptr() != address
    del first
    assert new(cache, 1000).data_ptr() == address
    assert new(cache, 500, torch.float64).data_ptr() == address
    assert new(cache, 1001).data_ptr() != address


KEEPERS = {
    "tensor": lambda t: t,
    "view": lambda t: t[5:],
    "detached": lambda t: t.detach(),
    "storage": lambda t: t.untyped_storage(),
    "typed storage": lambda t: t.storage(),
    "dlpack": lambda t: torch.from_dlpack(t),
    "graph": lambda t: (t.detach() * torch.ones(1, requires_grad=True)).grad_fn,
    "memory of a view": lambda t: t.view(torch.uint8)[::2].untyped_storage(),
}


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS.keys())
def test_whoever_refers_to_the_memory_keeps_it(cache, keep):
    made = new(cache, 1000)
    address = made.data_ptr()
    kept = keep(made)
    del made
    gc.collect()
    other = [new(cache, 1000) for _ in range(3)]
    assert address not in [t.data_ptr() for t in other]
    del kept
    gc.collect()
    assert new(cache, 1000).data_ptr() == address


def test_numpy_keeps_it(cache):
    numpy = pytest.importorskip("numpy")
    made = new(cache, 1000).fill_(3)
    array = made.numpy()
    del made
    new(cache, 1000).fill_(4)
    assert numpy.all(array == 3)


def test_never_holds_more_than_was_once_in_use(cache):
    def run(sizes):
        live = [new(cache, n) for n in sizes]
        return sum(4 * t.numel() for t in live)

    peak = 0
    for sizes in ((1000, 2000), (3000,), (500, 501, 502), (2000, 1000), (700,), (2900, 100)):
        peak = max(peak, run(sizes))
        assert cache.held() <= peak
    cache.clear()
    assert cache.held() == 0


def test_threads_get_different_blocks(cache):
    wrong = []

    def work(number):
        for _ in range(100):
            mine = new(cache, 4000).fill_(number)
            other = new(cache, 4000).fill_(-number)
            if not (bool((mine == number).all()) and bool((other == -number).all())):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_without_torchs_count_nothing_is_kept(cache, monkeypatch):
    from gyrator_runtime import blocks

    monkeypatch.setattr(blocks, "_use_count", None)
    new(cache, 1000)
    assert cache.held() == 0
