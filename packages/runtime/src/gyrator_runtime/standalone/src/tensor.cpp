#include "tensor.h"

#include <cstdlib>
#include <new>

#include "error.h"

namespace gyr {

namespace {

struct Type {
  const char *name, *ir;
  size_t size;
};

constexpr Type kTypes[] = {
    {"none", "", 0},
    {"float64", "f64", 8},
    {"float32", "f32", 4},
    {"float16", "f16", 2},
    {"bfloat16", "bf16", 2},
    {"float8_e4m3fn", "f8e4m3", 1},
    {"float8_e5m2", "f8e5m2", 1},
    {"float8_e4m3fnuz", "f8e4m3fnuz", 1},
    {"float8_e5m2fnuz", "f8e5m2fnuz", 1},
    {"int64", "i64", 8},
    {"int32", "i32", 4},
    {"int16", "i16", 2},
    {"int8", "i8", 1},
    {"uint64", "u64", 8},
    {"uint32", "u32", 4},
    {"uint16", "u16", 2},
    {"uint8", "u8", 1},
    {"bool", "bool", 1},
    {"complex64", "c64", 8},
    {"complex128", "c128", 16},
};
constexpr gyr_dtype kCount = sizeof kTypes / sizeof *kTypes;

// malloc is several times as fast as posix_memalign for small blocks. The start of its block is stored
// before the returned address.
void* allocate(void*, size_t bytes, size_t alignment) {
  if (bytes > SIZE_MAX - alignment) return nullptr;
  void* block = malloc(bytes + alignment);
  if (!block) return nullptr;
  const uintptr_t start = reinterpret_cast<uintptr_t>(block);
  auto** found = reinterpret_cast<void**>((start / alignment + 1) * alignment);
  found[-1] = block;
  return found;
}

void release(void*, void* data, size_t) { free(static_cast<void**>(data)[-1]); }

}  // namespace

gyr_dtype dtype_of(std::string_view name) {
  for (gyr_dtype k = 1; k < kCount; k++)
    if (name == kTypes[k].name || name == kTypes[k].ir) return k;
  return GYR_NONE;
}

gyr_allocator default_allocator() { return {nullptr, allocate, release}; }

int64_t elements(int ndim, const int64_t* sizes) {
  int64_t count = 1;
  for (int k = 0; k < ndim; k++)
    if (sizes[k] < 0 || __builtin_mul_overflow(count, sizes[k], &count))
      fail(GYR_ERROR_MEMORY, words("there can be no tensor of ", listed(ndim, sizes), " elements"));
  return count;
}

size_t extent(int ndim, const int64_t* sizes, const int64_t* strides, size_t item) {
  if (!elements(ndim, sizes)) return 0;
  int64_t last = 0;
  bool beyond = false;
  for (int k = 0; k < ndim; k++) {
    int64_t step;
    beyond |= __builtin_mul_overflow(sizes[k] - 1, strides[k], &step);
    beyond |= strides[k] < 0 || __builtin_add_overflow(last, step, &last);
  }
  int64_t bytes = 0;
  beyond |= __builtin_add_overflow(last, 1, &last) ||
            __builtin_mul_overflow(last, int64_t(item), &bytes);
  if (beyond)
    fail(GYR_ERROR_MEMORY,
         words("the address space is too small for a tensor of ", listed(ndim, sizes)));
  return size_t(bytes);
}

void contiguous(int ndim, const int64_t* sizes, int64_t* strides) {
  int64_t step = 1;
  for (int k = ndim; k-- > 0;) {
    strides[k] = step;
    if (sizes[k] > 1 && __builtin_mul_overflow(step, sizes[k], &step))
      fail(GYR_ERROR_MEMORY,
           words("the address space is too small for a tensor of ", listed(ndim, sizes)));
  }
}

bool same_strides(int ndim, const int64_t* sizes, const int64_t* a, const int64_t* b) {
  bool same = true, empty = false;
  for (int k = 0; k < ndim; k++) {
    empty |= sizes[k] == 0;
    same &= sizes[k] < 2 || a[k] == b[k];
  }
  return same || empty;
}

void copy(int ndim, const int64_t* sizes, size_t item, void* to, const int64_t* to_strides,
          const void* from, const int64_t* from_strides) {
  if (!elements(ndim, sizes)) return;
  int64_t whole[GYR_MAX_NDIM];
  contiguous(ndim, sizes, whole);
  if (same_strides(ndim, sizes, whole, to_strides) &&
      same_strides(ndim, sizes, whole, from_strides)) {
    memmove(to, from, item * size_t(elements(ndim, sizes)));
    return;
  }
  int64_t at[GYR_MAX_NDIM] = {};
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const int64_t bytes = int64_t(item);
  for (;;) {
    memcpy(target, source, item);
    int k = ndim - 1;
    for (; k >= 0; k--) {
      target += to_strides[k] * bytes;
      source += from_strides[k] * bytes;
      if (++at[k] < sizes[k]) break;
      target -= sizes[k] * to_strides[k] * bytes;
      source -= sizes[k] * from_strides[k] * bytes;
      at[k] = 0;
    }
    if (k < 0) return;
  }
}

std::string listed(int n, const int64_t* numbers) {
  std::string text = "[";
  for (int k = 0; k < n; k++) text += words(k ? ", " : "", numbers[k]);
  return text + "]";
}

std::string described(gyr_dtype dtype, int ndim, const int64_t* sizes, const int64_t* strides) {
  return words(gyr_dtype_name(dtype), listed(ndim, sizes), ", strides ", listed(ndim, strides));
}

Storage* Storage::make(const gyr_allocator& allocator, size_t bytes) {
  const size_t all = sizeof(Storage) + bytes;
  void* found = all < bytes ? nullptr : allocator.allocate(allocator.context, all, kAlignment);
  if (!found) fail(GYR_ERROR_MEMORY, words("cannot allocate ", all, " bytes"));
  auto* made = new (found) Storage;
  made->bytes = all;
  made->allocator = allocator;
  return made;
}

Storage* Storage::of_owner(void* owner, void (*release)(void* owner)) {
  gyr_allocator by = default_allocator();
  Storage* made = make(by, 0);
  made->allocator.context = owner;
  made->release_owner = release;
  return made;
}

void Storage::leave() {
  if (users.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  if (release_owner) release_owner(allocator.context);
  const gyr_allocator by = allocator;
  by.release(by.context, this, bytes);
}

Tensor* Tensor::make(gyr_dtype dtype, int ndim, const int64_t* sizes, const int64_t* strides) {
  void* memory = malloc(sizeof(Tensor) + 2 * sizeof(int64_t) * size_t(ndim));
  if (!memory) fail(GYR_ERROR_MEMORY, "cannot allocate a tensor");
  auto* made = new (memory) Tensor;
  made->dtype = dtype;
  made->ndim = ndim;
  made->item = gyr_dtype_size(dtype);
  std::copy(sizes, sizes + ndim, made->sizes());
  std::copy(strides, strides + ndim, made->strides());
  return made;
}

Tensor* Tensor::allocated(const gyr_allocator& allocator, gyr_dtype dtype, int ndim,
                          const int64_t* sizes, const int64_t* strides) {
  const size_t bytes = extent(ndim, sizes, strides, gyr_dtype_size(dtype));
  Own made(make(dtype, ndim, sizes, strides));
  made->storage = Storage::make(allocator, bytes);
  made->data = made->storage->data();
  return made.release();
}

void Tensor::free() {
  if (storage) storage->leave();
  ::free(this);
}

std::pair<const char*, const char*> Tensor::range() {
  return {data, data + extent(ndim, sizes(), strides(), item)};
}

}  // namespace gyr

const char* gyr_dtype_name(gyr_dtype dtype) {
  return dtype < 0 || dtype >= gyr::kCount ? "?" : gyr::kTypes[dtype].name;
}

size_t gyr_dtype_size(gyr_dtype dtype) {
  return dtype < 0 || dtype >= gyr::kCount ? 0 : gyr::kTypes[dtype].size;
}
