// Where the tensors of a call are made, and how they are copied: the host's memory, and a device's.
#pragma once

#include <memory>

#include "device.h"
#include "tensor.h"

namespace gyr {

struct Memory {
  gyr_allocator host = default_allocator();
  gyr_allocator own{};  // the caller's, of the device; without functions the device's own
  std::shared_ptr<const Device> device;  // null where there is none
  void* stream = nullptr;

  // Of an instance: what the caller gave (null: nothing) is the device's where there is one.
  static Memory of(const gyr_allocator* given, std::shared_ptr<const Device> device);

  // A tensor whose elements are undefined, on the host or the device (a type of devices). Memory that
  // `outlasts` calls is released when the device has done what is queued.
  Tensor* make(int32_t where, gyr_dtype dtype, int ndim, const int64_t* sizes,
               const int64_t* strides, bool outlasts = false) const;
  // Copies elements to a place in so many strides, from a tensor that lies on the same device, or,
  // with nobody else at work there, from one of the host to the device.
  void copy(int32_t where, void* to, const int64_t* strides, Tensor* from) const;
  // A copy in other strides.
  Tensor* laid_out(Tensor* given, const int64_t* strides) const;
  // Copies the first bytes of a tensor to the host.
  void read(void* to, const Tensor* from, size_t bytes) const;
};

}  // namespace gyr
