// Operators of ATen, called by name: torch/operators.cpp calls them, alone/operators.cpp has none.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "executor.h"
#include "json.h"

namespace gyr {

class Operator {
 public:
  virtual ~Operator() = default;
  // Calls it with arguments as plans give them, the last ones by `names` (null: none of them). A list
  // where it has several results, or none. Error for what it raises.
  virtual Value call(Arguments given, const Const* names) const = 0;
  // Calls one that writes a product of matrices into the first of tensors.
  virtual void operate(const std::vector<Tensor*>& tensors,
                       const std::vector<double>& numbers) const = 0;
};

// Whether the library calls operators.
bool has_operators();
// An operator by what the manifest says of it, of programs that run on a device (null: on none). Error
// (GYR_ERROR_MISFIT) where it cannot be called.
std::shared_ptr<const Operator> operator_of(const Json& row, const Device* device);

// libtorch's current stream on a device; the null stream where there is no libtorch.
void* current_stream(int32_t index);

// While one lives no gradients are recorded, and operators queue their work on a device's stream.
class Surroundings {
 public:
  explicit Surroundings(const Device* device, void* stream);
  ~Surroundings();
  Surroundings(const Surroundings&) = delete;
  Surroundings& operator=(const Surroundings&) = delete;

 private:
  bool recorded_ = false;
  void* guard_ = nullptr;
};

}  // namespace gyr
