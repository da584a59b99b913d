// Tensors of the library: strided, in memory of their own or of somebody else's.
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

// Element types by what torch, and the IR, call them; GYR_NONE for no such name.
gyr_dtype dtype_of(std::string_view name);

// The bytes from the first to the last element of a tensor whose strides are not negative. Error
// (GYR_ERROR_MEMORY) where an address cannot hold them, or a size is negative.
size_t extent(int ndim, const int64_t* sizes, const int64_t* strides, size_t item);
int64_t elements(int ndim, const int64_t* sizes);
void contiguous(int ndim, const int64_t* sizes, int64_t* strides);
// Whether strides are the same, as far as they matter.
bool same_strides(int ndim, const int64_t* sizes, const int64_t* a, const int64_t* b);
// Copies elements of so many bytes from strides to others. Where several places of the target are
// one, each is written as often.
void copy(int ndim, const int64_t* sizes, size_t item, void* to, const int64_t* to_strides,
          const void* from, const int64_t* from_strides);
// "float32[2, 3], strides [3, 1]"
std::string described(gyr_dtype dtype, int ndim, const int64_t* sizes, const int64_t* strides);
std::string listed(int n, const int64_t* numbers);

// Memory that tensors share; it stands before their elements.
struct alignas(kAlignment) Storage {
  std::atomic<int64_t> users{1};
  size_t bytes;
  gyr_allocator allocator;
  void (*release_owner)(void* owner) = nullptr;

  // Error (GYR_ERROR_MEMORY) where there is none.
  static Storage* make(const gyr_allocator& allocator, size_t bytes);
  // One that stands for memory of another's: `release` gets the owner when nobody has it any more.
  static Storage* of_owner(void* owner, void (*release)(void* owner));
  char* data() { return reinterpret_cast<char*>(this + 1); }
  Storage* share() {
    users.fetch_add(1, std::memory_order_relaxed);
    return this;
  }
  void leave();
};

// Counted by those that have it, all in the thread of one call; a `lasting` one is not counted.
struct Tensor {
  int32_t users = 1;
  bool lasting = false;
  gyr_dtype dtype = GYR_NONE;
  int32_t ndim = 0;
  int32_t device = GYR_CPU;  // the type of the one that it lies on
  int32_t place = -1;  // of the caller's output that it is, or -1
  Storage* storage = nullptr;  // null: the memory is somebody else's
  char* data = nullptr;
  size_t item = 0;

  static Tensor* make(gyr_dtype dtype, int ndim, const int64_t* sizes, const int64_t* strides);
  static Tensor* allocated(const gyr_allocator& allocator, gyr_dtype dtype, int ndim,
                           const int64_t* sizes, const int64_t* strides);
  void free();

  int64_t* sizes() { return reinterpret_cast<int64_t*>(this + 1); }
  int64_t* strides() { return sizes() + ndim; }
  Tensor* share() {
    users += !lasting;
    return this;
  }
  void leave() {
    if (!lasting && --users == 0) free();
  }
  // The first and the end of the bytes that it may touch.
  std::pair<const char*, const char*> range();
};

struct Freeing {
  void operator()(Tensor* tensor) const { tensor->free(); }
};
using Own = std::unique_ptr<Tensor, Freeing>;

gyr_allocator default_allocator();

}  // namespace gyr
