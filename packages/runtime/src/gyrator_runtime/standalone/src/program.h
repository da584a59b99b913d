// Plans as they are run: words that were looked through, and what they refer to.
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

// What a plan may call. Those of native/references.py, and of `gyrator_runtime.host`, that need
// nothing of Python; library.py has the same names.
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
  std::vector<int64_t> integers;  // of a sequence of integers
  gyr_dtype dtype = GYR_NONE;
  Tensor* tensor = nullptr;
  Call call = Call::kNothing;
  int64_t plan = 0, other = 0, carried = 0;  // fields of functions that run plans
  int32_t place = -1;  // of the caller's output that an allocator makes
  int32_t device = GYR_CPU;  // type of the one that a function makes tensors on
  std::shared_ptr<const Operator> op;
};

struct Launched {
  std::string name;
  Kernel kernel = nullptr;
  int64_t device = 0;  // the address of a `DeviceLaunch`, of a kernel of a device
  int64_t arguments = 0;  // how many that one takes
  std::vector<std::string> checks;  // what a return of 1, 2, ... says
};

struct Plan {
  int64_t n_args = 0, n_regs = 0, n_results = 0;
  std::vector<int64_t> code, ints;
  std::vector<Const> consts;
  std::vector<Launched> launches;

  // Notes which allocations are results as they are; the first `skipped` are none of the caller's.
  void bind_outputs(int64_t skipped);
};

// What plans are linked with.
struct Links {
  std::map<std::string, Launched> kernels;
  std::map<std::string, Tensor*> constants;
  std::map<std::string, std::shared_ptr<const Operator>> operators;
  bool device = false;  // they run on one
};

// Sees to it that an expression over so many slots stays within its stack, on both ways of each choice.
// Error: GYR_ERROR_FILE.
void check_expression(const int64_t* words, int64_t n, int64_t n_slots);

// Returns the plans of a text (plan/stored.py). Error: GYR_ERROR_FILE where they are malformed,
// GYR_ERROR_MISFIT for what only Python can do.
std::vector<Plan> read_plans(std::string_view text, const Links& links);

}  // namespace gyr
