"""How many kernels share a translation unit."""

from collections.abc import Sequence


def balanced(sizes: Sequence[int], limit: int, workers: int) -> list[list[int]]:
    """Group 0..len(sizes) into consecutive runs of about equal total size.

    There are as many groups as `limit` demands, and at least `workers` where each of them gets
    several.
    """
    if not sizes:
        return []
    total = sum(sizes)
    count = max(1, -(-total // max(limit, 1)))
    if len(sizes) >= 2 * workers:
        count = max(count, workers)
    count = min(count, len(sizes))
    groups: list[list[int]] = [[] for _ in range(count)]
    done = 0
    for number, size in enumerate(sizes):
        groups[min(count - 1, (done + size // 2) * count // max(total, 1))].append(number)
        done += size
    return [group for group in groups if group]
