#include "memory.h"

#include <cstring>

#include "error.h"

namespace gyr {

namespace {

struct Block {
  std::shared_ptr<const Device> device;
  gyr_allocator own;
  void* stream;
  size_t bytes;
  bool waits;
  void* data = nullptr;
};

void release(void* owner) {
  const std::unique_ptr<Block> block(static_cast<Block*>(owner));
  const Device::Current here(block->device.get());
  if (block->waits) block->device->settle();
  if (block->own.release) block->own.release(block->own.context, block->data, block->bytes);
  else block->device->release(block->data, block->stream);
}

}  // namespace

Memory Memory::of(const gyr_allocator* given, std::shared_ptr<const Device> device) {
  Memory made;
  if (given) (device ? made.own : made.host) = *given;
  made.device = std::move(device);
  return made;
}

Tensor* Memory::make(int32_t where, gyr_dtype dtype, int ndim, const int64_t* sizes,
                     const int64_t* strides, bool outlasts) const {
  if (where == GYR_CPU) return Tensor::allocated(host, dtype, ndim, sizes, strides);
  const size_t bytes = extent(ndim, sizes, strides, gyr_dtype_size(dtype));
  Own made(Tensor::make(dtype, ndim, sizes, strides));
  made->device = where;
  auto block = std::make_unique<Block>(Block{device, own, outlasts ? nullptr : stream,
                                             std::max<size_t>(bytes, 1), outlasts});
  Storage* storage = Storage::of_owner(block.get(), release);
  try {
    block->data = own.allocate ? own.allocate(own.context, block->bytes, kDeviceAlignment)
                               : device->allocate(block->bytes, block->stream);
    if (!block->data) fail(GYR_ERROR_MEMORY, words("cannot allocate ", bytes, " bytes"));
  } catch (...) {
    storage->release_owner = nullptr;
    storage->leave();
    throw;
  }
  made->storage = storage;
  made->data = static_cast<char*>(block.release()->data);
  return made.release();
}

void Memory::copy(int32_t where, void* to, const int64_t* strides, Tensor* from) const {
  const int ndim = from->ndim;
  if (where == GYR_CPU)
    return gyr::copy(ndim, from->sizes(), from->item, to, strides, from->data, from->strides());
  if (from->device == where)
    return device->copy(ndim, from->sizes(), from->item, to, strides, from->data, from->strides(),
                        stream);
  if (!elements(ndim, from->sizes())) return;
  const Own whole(Tensor::allocated(host, from->dtype, ndim, from->sizes(), strides));
  gyr::copy(ndim, from->sizes(), from->item, whole->data, strides, from->data, from->strides());
  device->to_device(to, whole->data, extent(ndim, from->sizes(), strides, from->item));
}

Tensor* Memory::laid_out(Tensor* given, const int64_t* strides) const {
  Own made(make(given->device, given->dtype, given->ndim, given->sizes(), strides));
  copy(given->device, made->data, strides, given);
  return made.release();
}

void Memory::read(void* to, const Tensor* from, size_t bytes) const {
  if (from->device == GYR_CPU) memcpy(to, from->data, bytes);
  else device->to_host(to, from->data, bytes, stream);
}

}  // namespace gyr
