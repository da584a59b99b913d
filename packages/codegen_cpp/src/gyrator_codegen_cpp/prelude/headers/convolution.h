//% gy_image_tile
#if GY_VEC
// Sums of R pixels by N vectors of features. At each of `rows` rows of the window, `length` consecutive elements of a pixel's
// window are at x, and those of the next row `across` later. Pixels are S elements apart, and rows of P pixels D elements; b
// is a panel. The panel after it is prefetched from `ahead`, `step` elements apart; a single vector of features has few. A says
// that the first-level cache does not hold a panel, of which weights are then prefetched 16 steps before they are read, once a
// cache line. What is stored is F of the sums.
template <vf32 (*F)(vf32), si64 R, si64 N, si64 S, si64 P, si64 D, bool A> static __attribute__((noinline)) void gy_image_tile(const sf32 *x, si64 across, si64 rows, si64 length, const sf32 *b, const sf32 *ahead, si64 step, const sf32 *bias, const sf32 *addend, sf32 *to, si64 features) {
  gy_registers<gy_registers<vf32, N>, R> sums;
  gy_each(sums, [&](auto &pixel, si64) GY_LAMBDA { gy_each(pixel, [&](vf32 &s, si64) GY_LAMBDA { s = vf32{}; }); });
  for (si64 k = 0; k < rows; k++, x += across)
    for (si64 d = 0; d < length; d++, b += N * GY_LANES) {
      gy_registers<vf32, N> weights;
      if constexpr (N > 1) __builtin_prefetch(ahead), ahead += step;
      if constexpr (A) gy_each(weights, [&](vf32 &, si64 n) GY_LAMBDA { if (n * GY_LANES % 16 == 0) __builtin_prefetch(b + (16 * N + n) * GY_LANES); });
      gy_each(weights, [&](vf32 &w, si64 n) GY_LAMBDA { w = gy_vload(b + n * GY_LANES); });
      gy_each(sums, [&](auto &pixel, si64 r) GY_LAMBDA {
        const vf32 value = gy_vsplat(x[d + r / P * D + r % P * S]);
        gy_each(pixel, weights, [&](vf32 &s, vf32 &w) GY_LAMBDA { s = gy_mad(value, w, s); });
      });
    }
  gy_each(sums, [&](auto &pixel, si64 r) GY_LAMBDA {
    gy_each(pixel, [&](vf32 &s, si64 n) GY_LAMBDA {
      vf32 value = s + gy_vload(bias + n * GY_LANES);
      if (addend) value = value + gy_vload(addend + r * features + n * GY_LANES);
      gy_store(to + r * features + n * GY_LANES, F(value));
    });
  });
}
#endif
//% gy_image gy_channels
// Some channels of an image, and the elements between its rows, pixels and channels.
struct gy_channels {
  const sf32 *at;
  si64 count, row, pixel, channel;
};
// An image of `height` rows and `width` pixels, whose channels are those of some parts, and the window that moves over the image.
struct gy_image {
  const gy_channels *parts;
  si64 count, height, width, channels, tall, wide, down, top, left;
};
//% gy_store_threes
#if GY_ISA == 512 || GY_ISA == 256
// Three vectors of which the elements follow each other in turn.
GY_FN void gy_store_threes(sf32 *p, vf32 a, vf32 b, vf32 c) {
#if GY_ISA == 512
  const vf32 x0 = __builtin_shufflevector(a, b, 0, 16, -1, 1, 17, -1, 2, 18, -1, 3, 19, -1, 4, 20, -1, 5);
  const vf32 x1 = __builtin_shufflevector(a, b, 21, -1, 6, 22, -1, 7, 23, -1, 8, 24, -1, 9, 25, -1, 10, 26);
  const vf32 x2 = __builtin_shufflevector(a, b, -1, 11, 27, -1, 12, 28, -1, 13, 29, -1, 14, 30, -1, 15, 31, -1);
  gy_store(p, (vf32)__builtin_shufflevector(x0, c, 0, 1, 16, 3, 4, 17, 6, 7, 18, 9, 10, 19, 12, 13, 20, 15));
  gy_store(p + GY_LANES, (vf32)__builtin_shufflevector(x1, c, 0, 21, 2, 3, 22, 5, 6, 23, 8, 9, 24, 11, 12, 25, 14, 15));
  gy_store(p + 2 * GY_LANES, (vf32)__builtin_shufflevector(x2, c, 26, 1, 2, 27, 4, 5, 28, 7, 8, 29, 10, 11, 30, 13, 14, 31));
#else
  const vf32 x0 = __builtin_shufflevector(a, b, 0, 8, -1, 1, 9, -1, 2, 10);
  const vf32 x1 = __builtin_shufflevector(a, b, -1, 3, 11, -1, 4, 12, -1, 5);
  const vf32 x2 = __builtin_shufflevector(a, b, 13, -1, 6, 14, -1, 7, 15, -1);
  gy_store(p, (vf32)__builtin_shufflevector(x0, c, 0, 1, 8, 3, 4, 9, 6, 7));
  gy_store(p + GY_LANES, (vf32)__builtin_shufflevector(x1, c, 10, 1, 2, 11, 4, 5, 12, 7));
  gy_store(p + 2 * GY_LANES, (vf32)__builtin_shufflevector(x2, c, 0, 13, 2, 3, 14, 5, 6, 15));
#endif
}
#endif
//% gy_padded_row
// `count` pixels of row `at` of an image, from `left` pixels before its beginning, and zeros outside of it.
GY_FN void gy_padded_row(sf32 *to, const gy_image &x, si64 at, si64 count) {
  const si64 channels = x.channels, inside = at < 0 || at >= x.height ? 0 : gy_least(x.width, count > x.left ? count - x.left : 0);
  const si64 before = inside ? x.left : count;
  __builtin_memset(to, 0, sizeof(sf32) * before * channels);
  if (!inside) return;
  to += before * channels;
  for (si64 k = 0, first = 0; k < x.count; first += x.parts[k++].count) {
    const gy_channels part = x.parts[k];
    const sf32 *const from = part.at + at * part.row;
    if (part.channel == 1 && part.pixel == channels && part.count == channels) __builtin_memcpy(to, from, sizeof(sf32) * inside * channels);
    else {
      si64 i = 0;
#if GY_ISA == 512 || GY_ISA == 256
      if (channels == 3 && part.count == 3 && part.pixel == 1)
        for (; i + GY_LANES <= inside; i += GY_LANES) {
          const sf32 *const pixel = from + i;
          gy_store_threes(to + i * channels, gy_vload(pixel), gy_vload(pixel + part.channel), gy_vload(pixel + 2 * part.channel));
        }
#endif
      for (; i < inside; i++) {
        si64 c = 0;
#if GY_VEC
        if (part.channel == 1)
          for (; c + GY_LANES <= part.count; c += GY_LANES) gy_store(to + i * channels + first + c, gy_vload(from + i * part.pixel + c));
#endif
        for (; c < part.count; c++) to[i * channels + first + c] = from[i * part.pixel + c * part.channel];
      }
    }
  }
  __builtin_memset(to + inside * channels, 0, sizeof(sf32) * (count - before - inside) * channels);
}
//% gy_copy_rows
// `count` rows of `length` elements, which are `from_step` apart at `from` and `step` at `to`.
GY_FN void gy_copy_rows(sf32 *to, si64 step, const sf32 *from, si64 from_step, si64 length, si64 count) {
  for (si64 n = 0; n < count; n++) __builtin_memcpy(to + n * step, from + n * from_step, sizeof(sf32) * length);
}
//% gy_convolve_rows : GY_LAMBDA
#if GY_VEC
// Rows `first` to `last` of a convolution, of `columns` pixels, for the features of panels `low` to `high`. The window of the first
// pixel, with `tall` rows of `length` elements that are `row` apart, is at `x`; that of the next row of pixels is `below` later. A panel stays in L2
// while it meets all rows. A tile has R pixels; the last one of a row, or of the image if a tile has whole rows of P pixels, has
// Q, if Q is not 0. The last panel may have more features than the result: its tiles are computed in whole.
template <vf32 (*F)(vf32), si64 R, si64 Q, si64 N, si64 S, si64 P, si64 D, bool A> GY_FN void gy_convolve_rows(const sf32 *x, si64 below, si64 row, si64 tall, si64 length, const sf32 *panels, const sf32 *bias, const sf32 *addend, sf32 *to, si64 first, si64 last, si64 columns, si64 low, si64 high, si64 features) {
  constexpr si64 W = N * GY_LANES, G = R / P;
  const si64 size = tall * length * W;
  const si64 tiles = G > 1 ? (last - first + G - 1) / G : (last - first) * ((columns + R - 1) / R), step = tiles < W ? W / tiles : 1;
  for (si64 j = low; j < high; j++) {
    const sf32 *const b = panels + j * size, *const next = j + 1 < high ? b + size : b;
    si64 tile = 0;
    for (si64 i = first; i < last; i += G) {
      const sf32 *const window = x + (i - first) * below;
      const auto run = [&](auto call, si64 y, si64 pixels) GY_LAMBDA {
        const si64 at = (i * columns + y) * features + j * W, live = features - j * W;
        const sf32 *more = addend ? addend + at : addend;
        sf32 *into = to + at;
        alignas(64) sf32 whole[R * W], added[R * W];
        if (live < W) {
          if (more) gy_copy_rows(added, W, more, features, live, pixels), more = added;
          into = whole;
        }
        call(window + y * S, row, tall, length, b, next + tile++ * size / tiles, step, bias + j * W, more, into, live < W ? W : features);
        if (live < W) gy_copy_rows(to + at, features, whole, W, live, pixels);
      };
      si64 y = 0, end = G > 1 ? gy_least(G, last - i) * columns : columns;
      for (; y + R <= end; y += R) run(gy_image_tile<F, R, N, S, P, D, A>, y, R);
      if constexpr (Q > 0)
        if (y < end) run(gy_image_tile<F, Q, N, S, P, D, A>, y, Q);
    }
  }
}
#endif
//% gy_convolve
#if GY_VEC
// The same for an image, whose rows are first copied with their padding, so that windows are plain loads.
template <vf32 (*F)(vf32), si64 R, si64 Q, si64 N, si64 S, si64 P, si64 D, bool A> GY_FN void gy_convolve(const gy_image &x, const sf32 *panels, const sf32 *bias, const sf32 *addend, sf32 *to, si64 first, si64 last, si64 columns, si64 low, si64 high, si64 features) {
  const si64 row = (columns - 1) * S + x.wide * x.channels, rows = (last - first - 1) * x.down + x.tall;
  const gy_scratch memory(sizeof(sf32) * rows * row);
  sf32 *const padded = (sf32 *)memory.aligned();
  for (si64 k = 0; k < rows; k++) gy_padded_row(padded + k * row, x, first * x.down - x.top + k, row / x.channels);
  gy_convolve_rows<F, R, Q, N, S, P, D, A>(padded, x.down * row, row, x.tall, x.wide * x.channels, panels, bias, addend, to, first, last, columns, low, high, features);
}
#endif
//% gy_taps gy_taps_within
// The rows of a window that are within an image of `height` rows, if the first one is row `start` of it and the others follow
// `step` later each.
struct gy_taps {
  si64 first, count;
};
GY_FN gy_taps gy_taps_within(si64 start, si64 step, si64 tall, si64 height) {
  const si64 first = gy_least(start < 0 ? (step - 1 - start) / step : 0, tall);
  const si64 end = start < height ? gy_least((height - start + step - 1) / step, tall) : 0;
  return {first, end > first ? end - first : 0};
}
//% gy_depthwise_tile : GY_LAMBDA
#if GY_VEC
// R neighbouring pixels of a depthwise convolution. The window of the first one has `tall` rows that are `row` elements apart, the
// first one at x, which have K weights each, for pixels of the image that are D apart. Windows are S pixels apart. From x, pixels
// A to B are within the image. F of the sums is stored. The last vector of channels overlaps the one before it; M says that
// there are fewer channels than lanes.
template <vf32 (*F)(vf32), si64 K, si64 S, si64 D, bool M, si64 R, si64 A, si64 B> static __attribute__((noinline)) void gy_depthwise_tile(const sf32 *x, si64 row, si64 tall, const sf32 *weight, const sf32 *bias, sf32 *to, si64 channels) {
  const auto load = [&](const sf32 *at) GY_LAMBDA {
    if constexpr (M) return gy_vload_n(at, channels);
    else return gy_vload(at);
  };
  for (si64 next = 0; next < channels; next += GY_LANES) {
    const si64 i = M ? 0 : gy_least(next, channels - GY_LANES);
    const vf32 first = bias ? load(bias + i) : vf32{};
    gy_registers<vf32, R> sums;
    gy_each(sums, [&](vf32 &s, si64) GY_LAMBDA { s = first; });
    const sf32 *at = x + i, *own = weight + i;
    for (si64 k = 0; k < tall; k++, at += row, own += K * channels) {
      gy_registers<vf32, K> weights;
      gy_each(weights, [&](vf32 &w, si64 l) GY_LAMBDA { w = load(own + l * channels); });
      gy_each(sums, [&](vf32 &s, si64 r) GY_LAMBDA {
        gy_each(weights, [&](vf32 &w, si64 l) GY_LAMBDA {
          const si64 c = r * S + l * D;
          if (c >= A && c < B) s = gy_mad(load(at + c * channels), w, s);
        });
      });
    }
    gy_each(sums, [&](vf32 &s, si64 r) GY_LAMBDA {
      sf32 *const pixel = to + r * channels + i;
      if constexpr (M) gy_store_n(pixel, F(s), channels);
      else gy_store(pixel, F(s));
    });
  }
}
#endif
