//% gy_share
// What there is to do: pieces that threads share out, units of work in a piece, element operations.
struct gy_share {
  si64 pieces, units, work;
};
//% gy_whole
// One thread does all of a kernel.
GY_FN si64 gy_whole(si64 (*part)(void *const *, const si64 *, si64, si64, sbool), gy_share share,
                  void *const *buffers, const si64 *sizes) {
  return part(buffers, sizes, 0, share.pieces * share.units, false);
}
//% gy_alone
// Each thread takes a stretch of a kernel's pieces; one does all of little work.
static si64 gy_alone(si64 (*part)(void *const *, const si64 *, si64, si64, sbool), gy_share share,
                     void *const *buffers, const si64 *sizes, si64 grain) {
  si64 failed = 0;
  if (share.work < grain) return gy_whole(part, share, buffers, sizes);
#pragma omp parallel
  {
    const si64 team = omp_get_num_threads(), member = omp_get_thread_num();
    const si64 low = share.pieces * member / team * share.units;
    const si64 high = share.pieces * (member + 1) / team * share.units;
    const si64 code = part(buffers, sizes, low, high, team > 1);
    if (code) __atomic_store_n(&failed, code, __ATOMIC_RELAXED);
  }
  return failed;
}
//% gy_together gy_kind gy_member
struct gy_kind {
  si64 (*part)(void *const *, const si64 *, si64, si64, sbool);
  gy_share share;
  const si64 *sizes;
  si64 codes;
};
struct gy_member {
  si64 kind, buffers;
};
// Each thread takes a stretch of equal work of
// all members' pieces, one after the other.
static si64 gy_together(const gy_kind *kinds, const gy_member *members, si64 count,
                        void *const *buffers, si64 grain) {
  si64 total = 0, failed = 0;
  for (si64 m = 0; m < count; m++) {
    const gy_share &s = kinds[members[m].kind].share;
    if (s.pieces > 0) total += s.pieces * (s.work / s.pieces + 1);
  }
#pragma omp parallel if (total >= grain)
  {
    const si64 team = omp_get_num_threads(), thread = omp_get_thread_num();
    const si64 low = total / team * thread + total % team * thread / team;
    const si64 high = total / team * (thread + 1) + total % team * (thread + 1) / team;
    si64 at = 0;
    for (si64 m = 0; m < count; m++) {
      const gy_kind &k = kinds[members[m].kind];
      if (k.share.pieces <= 0) continue;
      const si64 weight = k.share.work / k.share.pieces + 1;
      si64 begin = low <= at ? 0 : (low - at + weight - 1) / weight;
      si64 end = high <= at ? 0 : (high - at + weight - 1) / weight;
      if (end > k.share.pieces) end = k.share.pieces;
      if (begin < end) {
        begin *= k.share.units, end *= k.share.units;
        const si64 code = k.part(buffers + members[m].buffers, k.sizes, begin, end, team > 1);
        if (code) __atomic_store_n(&failed, code + k.codes, __ATOMIC_RELAXED);
      }
      at += k.share.pieces * weight;
    }
  }
  return failed;
}
