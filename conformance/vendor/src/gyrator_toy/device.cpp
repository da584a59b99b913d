// The toy device's runtime: PyTorch's PrivateUse1 with memory, streams and events of its own.
// It computes in host memory, and submits work at once; eager operations run on the host.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace {

constexpr auto TOY = c10::DeviceType::PrivateUse1;
constexpr int DEVICES = 2, STREAMS = 8;
const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

thread_local c10::DeviceIndex device = 0;
thread_local c10::StreamId stream[DEVICES] = {0, 0};
std::atomic<int64_t> held[DEVICES], launched[DEVICES][STREAMS], streams_made{0};

// Memory -----------------------------------------------------------------------------------------

struct Block { void *data; size_t bytes; int where; };

void release(void *context) {
  auto *block = static_cast<Block *>(context);
  held[block->where] -= static_cast<int64_t>(block->bytes);
  std::free(block->data);
  delete block;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::Device place(TOY, device);
    if (bytes == 0) return {nullptr, nullptr, nullptr, place};
    auto *block = new Block{std::aligned_alloc(64, (bytes + 63) / 64 * 64), bytes, device};
    held[device] += static_cast<int64_t>(bytes);
    return {block->data, block, &release, place};
  }
  void copy_data(void *to, const void *from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(TOY, &memory);

// Streams and events -----------------------------------------------------------------------------

struct Guard final : c10::impl::NoOpDeviceGuardImpl<TOY> {  // work is done when it is submitted
  c10::Device exchangeDevice(c10::Device d) const override {
    return {TOY, std::exchange(device, d.has_index() ? d.index() : 0)};
  }
  c10::Device getDevice() const override { return {TOY, device}; }
  void setDevice(c10::Device d) const override { device = d.has_index() ? d.index() : 0; }
  void uncheckedSetDevice(c10::Device d) const noexcept override { device = d.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  c10::Stream at(c10::Device d, c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(TOY, d.has_index() ? d.index() : device), id);
  }
  c10::Stream getStream(c10::Device d) const noexcept override { return at(d, stream[d.has_index() ? d.index() : device]); }
  c10::Stream getDefaultStream(c10::Device d) const override { return at(d, 0); }
  c10::Stream getNewStream(c10::Device d, int) const override { return at(d, 1 + streams_made++ % (STREAMS - 1)); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const noexcept override {
    auto old = getStream(s.device());
    stream[s.device_index()] = s.id();
    return old;
  }
  void record(void **event, const c10::Stream &, const c10::DeviceIndex, const c10::EventFlag) const override {
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    if (*event == nullptr) *event = new int64_t;
    *static_cast<int64_t *>(*event) = std::chrono::nanoseconds(now).count();
  }
  void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override { delete static_cast<int64_t *>(event); }
  void block(void *, const c10::Stream &) const override {}
  bool queryEvent(void *) const override { return true; }
  void synchronizeEvent(void *) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  double elapsedTime(void *a, void *b, const c10::DeviceIndex) const override {
    return 1e-6 * static_cast<double>(*static_cast<int64_t *>(b) - *static_cast<int64_t *>(a));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override {
    auto data = memory.allocate(bytes);
    std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// Eager operations -------------------------------------------------------------------------------

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> place, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(place.value_or(at::Device(TOY, device)));
  return at::detail::empty_generic(size, &memory, KEYS, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> place, std::optional<bool>) {
  c10::DeviceGuard guard(place.value_or(at::Device(TOY, device)));
  return at::detail::empty_strided_generic(size, stride, &memory, KEYS, c10::dtype_or_default(dtype));
}

at::Tensor on_host(const at::Tensor &t) {  // the same bytes, seen from the host
  if (t.is_cpu()) return t;
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool) {
  if (to.numel()) on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to) {
  at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor &t) { return at::native::_local_scalar_dense_cpu(on_host(t)); }

int64_t attention_in_parts(const at::Tensor &, const at::Tensor &, const at::Tensor &,
                           const std::optional<at::Tensor> &, double, bool, std::optional<double>, bool) {
  return 0;  // PyTorch's decomposition: the device has no kernel of its own
}

void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("resize_", at::native::resize_);
  m.impl("set_.source_Storage", static_cast<at::Tensor &(*)(at::Tensor &, at::Storage)>(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("_fused_sdp_choice", attention_in_parts);
  for (auto name : {"convolution", "convolution_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

extern "C" void toy_start() {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
}
extern "C" int64_t toy_bytes_held(int where) { return held[where]; }
extern "C" int64_t toy_launched(int where, int id) { return launched[where][id]; }
extern "C" void toy_count_launch() { launched[device][stream[device]]++; }
