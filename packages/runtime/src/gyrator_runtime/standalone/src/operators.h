// ATen operators, called by name: implemented by torch/operators.cpp; alone/operators.cpp has none.
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
  // Calls the operator with the arguments of a plan, the last ones by `names` (null: all positional).
  // Returns a list if it has several results or none. Throws Error on failure.
  virtual Value call(Arguments given, const Const* names) const = 0;
  // Calls an operator that returns a tensor in a library's own layout.
  virtual Own pack(Arguments given) const = 0;
  // Calls an operator that writes a matrix product to the first tensor.
  virtual void operate(const std::vector<Tensor*>& tensors,
                       const std::vector<double>& numbers) const = 0;
};

// Returns whether the library can call operators.
bool has_operators();
// Returns an operator by its description in the manifest, for programs on a device (may be null).
// Throws Error (GYR_ERROR_MISFIT) if it cannot be called.
std::shared_ptr<const Operator> operator_of(const Json& row, const Device* device);

// Returns libtorch's current stream on a device; the null stream without libtorch.
void* current_stream(int32_t index);

// During its lifetime, no gradients are recorded and operators queue their work on a device's stream.
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
