"""Batching of kernels into translation units."""

from collections.abc import Sequence


def balanced(sizes: Sequence[int], limit: int, workers: int) -> list[list[int]]:
    """Group the indices of `sizes` into consecutive runs of about equal total size.

    There are enough groups for an average size of at most `limit`, and at least `workers` if each
    of those gets two or more elements on average.
    """
    if not sizes:
        return []
    total = sum(sizes)
    count = max(1, -(-total // max(limit, 1)))
    if len(sizes) >= 2 * workers:
        count = max(count, workers)
    count = min(count, len(sizes))
    groups: list[list[int]] = [[] for _ in range(count)]
    before = 0
    for index, size in enumerate(sizes):
        groups[min(count - 1, (before + size // 2) * count // max(total, 1))].append(index)
        before += size
    return [group for group in groups if group]
