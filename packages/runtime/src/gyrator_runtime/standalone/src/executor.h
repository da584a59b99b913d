// Execution of plans over the library's tensors. plan.h interprets the words.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "memory.h"
#include "program.h"
#include "tensor.h"

namespace gyr {

struct Value;
using Values = std::vector<Value>;

// The value of a register.
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
  // Takes over the caller's reference.
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
  int64_t* computed = nullptr;  // in `room` if they are few
  size_t n_computed = 0;
  int64_t room[4];
  std::unique_ptr<int64_t[]> more;

  void compute(size_t n) {
    if (n > sizeof room / sizeof *room) more = std::make_unique<int64_t[]>(n);
    computed = more ? more.get() : room;
    n_computed = n;
  }
};

// The arguments of a call.
struct Arguments {
  Given* data;
  size_t n;
  Given& operator[](size_t k) const { return data[k]; }
};

// State shared by all plans of one call of gyr_run.
struct Context {
  const std::vector<Plan>& plans;
  const Memory& memory;
  gyr_profiler profiler;
  void* profiled;
  // The caller's outputs that may be written during the run; null for others.
  gyr_tensor* const* outputs;
  size_t n_outputs;
};

// Runs a plan. `values` has as many values as the plan takes, which are consumed; there is room for
// all its results. Throws Error on failure.
void run_plan(const Context& context, const Plan& plan, Value* arguments, Value* results);

}  // namespace gyr
