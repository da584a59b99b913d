// An NVIDIA device, through the driver's library, which is opened when a package needs it. No CUDA
// header or runtime is used.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gyrator.h"

namespace gyr {

struct Driver;
class Json;

class Device : public std::enable_shared_from_this<Device> {
 public:
  // Opens the device with an index, or the current one for -1. Throws Error (GYR_ERROR_MISFIT) if there
  // is none.
  static std::shared_ptr<Device> open(int32_t index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int32_t index() const { return index_; }
  const std::string& arch() const { return arch_; }  // "sm_90"
  const Driver& driver() const { return driver_; }
  // Throws Error (GYR_ERROR_DEVICE or GYR_ERROR_MEMORY) with the driver's message if a call failed.
  void check(int32_t status, const char* what) const;
  std::string described(int32_t status) const;

  // The following functions require the device to be current.
  void* allocate(size_t bytes, void* stream) const;
  void release(void* data, void* stream) const noexcept;
  void to_device(void* to, const void* from, size_t bytes) const;
  void to_host(void* to, const void* from, size_t bytes, void* stream) const;
  // Queues a copy of elements between different strides.
  void copy(int ndim, const int64_t* sizes, size_t item, void* to, const int64_t* to_strides,
            const void* from, const int64_t* from_strides, void* stream) const;
  // Waits for all queued work; `settle` ignores failures.
  void wait() const;
  void settle() const noexcept;

  // Makes a device current for the duration of a scope, and restores the previous one.
  class Current {
   public:
    explicit Current(const Device* device);  // null: no effect
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    const Device* device() const { return device_; }

   private:
    const Device* device_;
    void* before_ = nullptr;
  };

 private:
  Device(const Driver& driver, int32_t index);
  const Driver& driver_;
  int32_t index_;
  std::string arch_;
  void* context_ = nullptr;
  void* pool_ = nullptr;
};

// Returns a rank of how well machine code for an architecture fits a device's; -1 if it does not run
// there (triton/architecture.py).
int64_t fit(const std::string& code, const std::string& device);

// Sets the stream for the kernels of this thread's call for the duration of a scope.
class OnStream {
 public:
  explicit OnStream(void* stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  void* before_;
};

// The kernels of a package member (triton/binary.py), loaded by the driver as long as the object is
// alive.
class DeviceCode {
 public:
  // `bytes` must outlive the object. Throws Error (GYR_ERROR_MISFIT) if the driver rejects them.
  DeviceCode(std::shared_ptr<const Device> device, std::string_view bytes);
  ~DeviceCode();
  DeviceCode(const DeviceCode&) = delete;
  DeviceCode& operator=(const DeviceCode&) = delete;
  // Returns the address of a kernel's `DeviceLaunch` (plan.h) and its number of arguments. Throws Error
  // (GYR_ERROR_FILE) if there is none of that name.
  std::pair<int64_t, int64_t> kernel(const std::string& symbol) const;

 private:
  struct Kernel;
  struct Libraries {
    std::shared_ptr<const Device> device;
    std::vector<void*> loaded;
    ~Libraries();
  };
  static int64_t prepare(const void* of, int64_t what);
  void read(const Json& row, std::string_view codes);
  void load(Kernel& kernel, int which);

  Libraries libraries_;
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
  std::mutex lock_;  // guards what is loaded later
};

}  // namespace gyr
