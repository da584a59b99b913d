// C++17 wrapper of gyrator.h with RAII objects and exceptions.
//
//   gyrator::Model model(gyrator::Package("model.gya"));
//   std::vector<gyrator::Tensor> results = model.run({gyrator::view(data, {7, 16})});
//   const float* y = results[0].data<float>();
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gyrator.h"

namespace gyrator {

// A function of the library that failed.
class Error : public std::runtime_error {
 public:
  explicit Error(gyr_status status)
      : std::runtime_error(std::string(gyr_status_name(status)) + ": " + gyr_last_error()),
        status_(status) {}
  gyr_status status() const noexcept { return status_; }

 private:
  gyr_status status_;
};

inline void check(gyr_status status) {
  if (status != GYR_OK) throw Error(status);
}

// The dtype of a C++ type.
template <class T>
constexpr gyr_dtype dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, double>) return GYR_FLOAT64;
  else if constexpr (std::is_same_v<U, float>) return GYR_FLOAT32;
  else if constexpr (std::is_same_v<U, bool>) return GYR_BOOL;
  else if constexpr (std::is_integral_v<U> && std::is_signed_v<U>)
    return sizeof(U) == 8   ? GYR_INT64
           : sizeof(U) == 4 ? GYR_INT32
           : sizeof(U) == 2 ? GYR_INT16
                            : GYR_INT8;
  else if constexpr (std::is_integral_v<U>)
    return sizeof(U) == 8   ? GYR_UINT64
           : sizeof(U) == 4 ? GYR_UINT32
           : sizeof(U) == 2 ? GYR_UINT16
                            : GYR_UINT8;
  else static_assert(!sizeof(U), "no element type is this type");
}

// External memory as an input or an output. It must outlive its use.
class View {
 public:
  View(void* data, gyr_dtype dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides = {})
      : data_(data), dtype_(dtype), sizes_(std::move(sizes)), strides_(std::move(strides)) {}
  // Marks the memory as that of a GPU.
  View on_gpu(int32_t index) && {
    device_type_ = GYR_CUDA;
    device_index_ = index;
    return std::move(*this);
  }
  // Valid as long as this object is not moved or changed.
  gyr_tensor raw() const {
    gyr_tensor made{};
    made.data = data_;
    made.dtype = dtype_;
    made.ndim = static_cast<int32_t>(sizes_.size());
    made.sizes = sizes_.data();
    made.strides = strides_.empty() ? nullptr : strides_.data();
    made.device_type = device_type_;
    made.device_index = device_index_;
    return made;
  }

 private:
  void* data_;
  gyr_dtype dtype_;
  int32_t device_type_ = GYR_CPU, device_index_ = 0;
  std::vector<int64_t> sizes_, strides_;
};

// Returns a view of memory of a C++ type, contiguous or with the given strides. Programs write only
// to inputs that their signature marks as written.
template <class T>
View view(T* data, std::vector<int64_t> sizes, std::vector<int64_t> strides = {}) {
  return View(const_cast<std::remove_cv_t<T>*>(data), dtype_of<T>(), std::move(sizes),
              std::move(strides));
}

// A result.
class Tensor {
 public:
  Tensor() noexcept : held_{} {}
  // Takes ownership of a tensor set by a function of gyrator.h.
  explicit Tensor(const gyr_tensor& held) noexcept : held_(held) {}
  Tensor(Tensor&& other) noexcept : held_(other.held_) { other.held_ = gyr_tensor{}; }
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { gyr_tensor_release(&held_); }

  gyr_dtype dtype() const noexcept { return held_.dtype; }
  std::vector<int64_t> sizes() const { return {held_.sizes, held_.sizes + held_.ndim}; }
  std::vector<int64_t> strides() const { return {held_.strides, held_.strides + held_.ndim}; }
  // Throws std::invalid_argument for another dtype.
  template <class T>
  T* data() const {
    if (held_.dtype != dtype_of<T>())
      throw std::invalid_argument(std::string("the elements are ") + gyr_dtype_name(held_.dtype));
    return static_cast<T*>(held_.data);
  }
  const gyr_tensor& raw() const noexcept { return held_; }

 private:
  gyr_tensor held_;
};

// An open package.
class Package {
 public:
  // `device` is the index of a GPU, for a package for GPUs; -1: the current one.
  explicit Package(const std::string& path, const gyr_open_options& options = {},
                   int32_t device = -1) {
    check(gyr_package_open_on(path.c_str(), &options, device, &held_));
  }
  Package(Package&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  Package& operator=(Package&& other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  Package(const Package&) = delete;
  Package& operator=(const Package&) = delete;
  ~Package() { gyr_package_close(held_); }

  std::string isa() const { return gyr_package_isa(held_); }
  // The entry points. Their strings and arrays are valid as long as the package.
  std::vector<gyr_entry> entries() const {
    std::vector<gyr_entry> made(gyr_package_entries(held_));
    for (size_t k = 0; k < made.size(); k++) check(gyr_package_entry(held_, k, &made[k]));
    return made;
  }
  size_t find(const std::string& name) const {
    size_t place = 0;
    check(gyr_package_find(held_, name.c_str(), &place));
    return place;
  }
  std::vector<gyr_value> weights() const {
    std::vector<gyr_value> made(gyr_package_weights(held_));
    for (size_t k = 0; k < made.size(); k++) check(gyr_package_weight(held_, k, &made[k]));
    return made;
  }
  gyr_package* raw() const noexcept { return held_; }

 private:
  gyr_package* held_ = nullptr;
};

// An instance of a package. The package may be closed first.
class Model {
 public:
  explicit Model(const Package& package, const gyr_allocator* allocator = nullptr) {
    for (const gyr_entry& entry : package.entries()) outputs_.push_back(entry.n_outputs);
    check(gyr_instance_create(package.raw(), allocator, &held_));
  }
  Model(Model&& other) noexcept
      : held_(std::exchange(other.held_, nullptr)), outputs_(std::move(other.outputs_)) {}
  Model& operator=(Model&& other) noexcept {
    std::swap(held_, other.held_);
    std::swap(outputs_, other.outputs_);
    return *this;
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model() { gyr_instance_close(held_); }

  // Runs an entry point and returns its results.
  std::vector<Tensor> run(const std::vector<View>& inputs, size_t entry = 0) const {
    return collected(inputs, entry, [&](const auto& given, auto& made) {
      return gyr_run(held_, entry, given.data(), given.size(), made.data(), made.size());
    });
  }
  // Runs an entry point with result buffers.
  void run_into(const std::vector<View>& inputs, const std::vector<View>& outputs,
                size_t entry = 0) const {
    const std::vector<gyr_tensor> given = raws(inputs);
    std::vector<gyr_tensor> places = raws(outputs);
    check(gyr_run(held_, entry, given.data(), given.size(), places.data(), places.size()));
  }
  // Like `run`, on a stream of the package's GPU. Release the results before destroying the stream.
  std::vector<Tensor> run_on(void* stream, const std::vector<View>& inputs, size_t entry = 0) const {
    return collected(inputs, entry, [&](const auto& given, auto& made) {
      return gyr_run_on(held_, entry, given.data(), given.size(), made.data(), made.size(), stream);
    });
  }
  // Replaces weights by copies; all of them, or none on failure.
  void update(const std::vector<std::pair<std::string, View>>& weights) const {
    std::vector<const char*> names;
    std::vector<gyr_tensor> tensors;
    for (const auto& [name, tensor] : weights) {
      names.push_back(name.c_str());
      tensors.push_back(tensor.raw());
    }
    check(gyr_instance_update(held_, names.data(), tensors.data(), names.size()));
  }
  // Returns a copy of a weight.
  Tensor read(const std::string& name) const {
    gyr_tensor made{};
    check(gyr_instance_read(held_, name.c_str(), &made));
    return Tensor(made);
  }
  void profile(gyr_profiler profiler, void* context) const {
    check(gyr_instance_profile(held_, profiler, context));
  }
  gyr_instance* raw() const noexcept { return held_; }

 private:
  template <class Call>
  std::vector<Tensor> collected(const std::vector<View>& inputs, size_t entry, Call call) const {
    const std::vector<gyr_tensor> given = raws(inputs);
    std::vector<gyr_tensor> made(entry < outputs_.size() ? outputs_[entry] : 0, gyr_tensor{});
    check(call(given, made));
    std::vector<Tensor> results;
    results.reserve(made.size());
    for (const gyr_tensor& one : made) results.emplace_back(one);
    return results;
  }
  static std::vector<gyr_tensor> raws(const std::vector<View>& of) {
    std::vector<gyr_tensor> made;
    made.reserve(of.size());
    for (const View& one : of) made.push_back(one.raw());
    return made;
  }
  gyr_instance* held_ = nullptr;
  std::vector<size_t> outputs_;  // number of outputs of each entry point
};

}  // namespace gyrator
