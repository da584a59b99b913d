// Calls of plans, over tensors of the library. plan.h runs the words.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory.h"
#include "program.h"
#include "tensor.h"

namespace gyr {

struct Value;
using Values = std::vector<Value>;

// What a register holds.
struct Value {
  enum class Kind { kEmpty, kNone, kInteger, kBool, kReal, kTensor, kList };
  Kind kind = Kind::kEmpty;
  union {
    int64_t integer;
    double real;
    Tensor* tensor;
    Values* list;
  };

  Value() : integer(0) {}
  static Value none() { return Value(Kind::kNone); }
  static Value of(int64_t number) {
    Value made(Kind::kInteger);
    made.integer = number;
    return made;
  }
  // Takes over what the caller has of it.
  static Value of(Tensor* tensor) {
    Value made(Kind::kTensor);
    made.tensor = tensor;
    return made;
  }
  static Value of(Values list);
  static Value of(const Const& constant);
  Value(const Value& other);
  Value(Value&& other) noexcept : kind(other.kind), integer(other.integer) {
    other.kind = Kind::kEmpty;
  }
  Value& operator=(Value other) noexcept {
    std::swap(kind, other.kind);
    std::swap(integer, other.integer);
    return *this;
  }
  ~Value() {
    if (kind == Kind::kTensor) tensor->leave();
    else if (kind == Kind::kList) leave_list();
  }

 private:
  explicit Value(Kind kind_) : kind(kind_), integer(0) {}
  void leave_list();
};

// An argument of a call: a value, a constant, or sizes.
struct Given {
  Value value;
  const Const* constant = nullptr;
  std::vector<int64_t> computed;
};

// What all plans of one call of gyr_run have in common.
struct Context {
  const std::vector<Plan>& plans;
  const Memory& memory;
  gyr_profiler profiler;
  void* profiled;
  // The caller's outputs that may be written before the end; null for others.
  const std::vector<gyr_tensor*>& outputs;
};

// Runs a plan on values and returns its results. Error for what fails.
Values run_plan(const Context& context, const Plan& plan, Values arguments);

}  // namespace gyr
