// Allocation and copying of tensors, in host memory and on a device.
#pragma once

#include <memory>

#include "device.h"
#include "tensor.h"

namespace gyr {

struct Memory {
  gyr_allocator host = default_allocator();
  gyr_allocator own{};  // the caller's, for the device; without functions, the device's own
  std::shared_ptr<const Device> device;  // null if there is none
  void* stream = nullptr;

  // For an instance: the caller's allocator (may be null) is for the device if there is one.
  static Memory of(const gyr_allocator* given, std::shared_ptr<const Device> device);

  // Returns an uninitialised tensor on the host or the device (a device type). Memory that `outlasts`
  // calls is released after all queued work of the device.
  Tensor* make(int32_t where, gyr_dtype dtype, int ndim, const int64_t* sizes,
               const int64_t* strides, bool outlasts = false) const;
  // Copies elements to an address with given strides, from a tensor on the same device, or from the host
  // to the device if no other work runs there.
  void copy(int32_t where, void* to, const int64_t* strides, Tensor* from) const;
  // Returns a copy with other strides.
  Tensor* laid_out(Tensor* given, const int64_t* strides) const;
  // Copies the first bytes of a tensor to the host.
  void read(void* to, const Tensor* from, size_t bytes) const;
};

}  // namespace gyr
