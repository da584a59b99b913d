// The library's tensors: strided, with owned or external memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gyrator.h"

namespace gyr {

constexpr size_t kAlignment = 64, kDeviceAlignment = 256;

// Return the dtype for its name in PyTorch, and in the IR; GYR_NONE for an unknown name.
gyr_dtype dtype_of(std::string_view name);

// Returns the bytes from the first to the last element of a tensor with non-negative strides. Throws
// Error (GYR_ERROR_MEMORY) on overflow, or for a negative size.
size_t extent(int ndim, const int64_t* sizes, const int64_t* strides, size_t item);
int64_t elements(int ndim, const int64_t* sizes);
void contiguous(int ndim, const int64_t* sizes, int64_t* strides);
// Returns whether strides are equal, ignoring axes where they have no effect.
bool same_strides(int ndim, const int64_t* sizes, const int64_t* a, const int64_t* b);
// Copies elements of a size in bytes between different strides. Overlapping elements of the target
// are written repeatedly.
void copy(int ndim, const int64_t* sizes, size_t item, void* to, const int64_t* to_strides,
          const void* from, const int64_t* from_strides);
// "float32[2, 3], strides [3, 1]"
std::string described(gyr_dtype dtype, int ndim, const int64_t* sizes, const int64_t* strides);
std::string listed(int n, const int64_t* numbers);

// A block of memory shared by tensors; this header precedes their elements.
struct alignas(kAlignment) Storage {
  std::atomic<int64_t> users{1};
  size_t bytes;
  gyr_allocator allocator;
  void (*release_owner)(void* owner) = nullptr;

  // Throws Error (GYR_ERROR_MEMORY) if the allocation fails.
  static Storage* make(const gyr_allocator& allocator, size_t bytes);
  // Represents external memory: `release` is called with the owner after the last use.
  static Storage* of_owner(void* owner, void (*release)(void* owner));
  char* data() { return reinterpret_cast<char*>(this + 1); }
  Storage* share() {
    users.fetch_add(1, std::memory_order_relaxed);
    return this;
  }
  void leave();
};

// Reference-counted within the thread of one call; a `lasting` tensor is not counted.
struct Tensor {
  int32_t users = 1;
  bool lasting = false;
  gyr_dtype dtype = GYR_NONE;
  int32_t ndim = 0;
  int32_t device = GYR_CPU;  // the type of the one that it lies on
  int32_t place = -1;  // index of the caller's output that it is, or -1
  bool packed = false;  // in a library's own layout: a tensor of libtorch, which owns the storage
  Storage* storage = nullptr;  // null: external memory
  char* data = nullptr;
  size_t item = 0;

  static Tensor* make(gyr_dtype dtype, int ndim, const int64_t* sizes, const int64_t* strides);
  static Tensor* allocated(const gyr_allocator& allocator, gyr_dtype dtype, int ndim,
                           const int64_t* sizes, const int64_t* strides);
  void free();

  int64_t* sizes() { return reinterpret_cast<int64_t*>(this + 1); }
  int64_t* strides() { return sizes() + ndim; }
  Tensor* share() {
    if (!lasting) users++;  // a lasting tensor is not modified, because other calls share it
    return this;
  }
  void leave() {
    if (!lasting && --users == 0) free();
  }
  // Returns the range of bytes that it may access.
  std::pair<const char*, const char*> range();
};

struct Freeing {
  void operator()(Tensor* tensor) const { tensor->free(); }
};
using Own = std::unique_ptr<Tensor, Freeing>;

gyr_allocator default_allocator();

}  // namespace gyr
