// Plans in executable form: verified words, and the objects that they refer to.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plan.h"
#include "json.h"
#include "tensor.h"

namespace gyr {

// Functions that a plan may call: those of native/references.py and `gyrator_runtime.host` that do not
// need Python. library.py has the same names.
enum class Call {
  kNothing,
  kSizeOf,
  kStrideOf,
  kInteger,
  kIdentity,
  kReinterpret,
  kOverStorage,
  kSeparate,
  kAssertTrue,
  kReadScalar,
  kPack,
  kAllocator,
  kConforming,
  kWithin,
  kBranching,
  kLooping,
  kRepeating,
  kCalling,
  kOperator,
  kOperating,
};

class Operator;

struct Const {
  enum class Kind { kNone, kInteger, kReal, kText, kSequence, kType, kTensor, kFunction, kOther };
  Kind kind = Kind::kNone;
  bool truth = false;  // an integer that is a bool
  int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<Const> items;
  std::vector<int64_t> integers;  // for a sequence of integers
  gyr_dtype dtype = GYR_NONE;
  Tensor* tensor = nullptr;
  Call call = Call::kNothing;
  int64_t plan = 0, other = 0, carried = 0;  // fields of functions that run plans
  int32_t place = -1;  // index of the caller's output that an allocator creates
  int32_t device = GYR_CPU;  // type of the device on which a function creates tensors
  std::shared_ptr<const Operator> op;
};

// Returns a number, a text, null or a list of these.
Const constant_of(const Json& data);

struct Launched {
  std::string name;
  Kernel kernel = nullptr;
  int64_t device = 0;  // address of the `DeviceLaunch` of a device kernel
  int64_t arguments = 0;  // its number of arguments
  std::vector<std::string> checks;  // messages for return values of 1, 2, ...
};

struct Plan {
  int64_t n_args = 0, n_regs = 0, n_results = 0;
  std::vector<int64_t> code, ints;
  std::vector<Const> consts;
  std::vector<Launched> launches;

  // Determines which allocations are results; the first `skipped` results are not the caller's.
  void bind_outputs(int64_t skipped);
};

// The objects that plans are linked with.
struct Links {
  std::map<std::string, Launched> kernels;
  std::map<std::string, Tensor*> constants;
  std::map<std::string, std::shared_ptr<const Operator>> operators;
  bool device = false;  // whether they run on a device
};

// Checks that an expression over a number of slots stays within its stack, on both sides of each choice.
// Throws Error (GYR_ERROR_FILE) otherwise.
void check_expression(const int64_t* words, int64_t n, int64_t n_slots);

// Returns the plans of a text (plan/stored.py). Throws Error: GYR_ERROR_FILE if they are malformed,
// GYR_ERROR_MISFIT if they need Python.
std::vector<Plan> read_plans(std::string_view text, const Links& links);

}  // namespace gyr
