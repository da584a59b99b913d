#include "executor.h"

#include <time.h>

#include "error.h"
#include "few.h"
#include "operators.h"

namespace gyr {

namespace {

constexpr size_t kFewArguments = 6;

// Uninitialised memory for the duration of a call, on the stack if it is small.
template <class T, size_t inline_count = 64>
struct Scratch {
  T inline_[inline_count];
  std::unique_ptr<T[]> more;
  T* data = inline_;
  explicit Scratch(int64_t n) {
    if (size_t(n) <= inline_count) return;
    more = std::make_unique<T[]>(size_t(n));
    data = more.get();
  }
};

int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

[[noreturn]] void unexpected(const char* what) {
  fail(GYR_ERROR_INTERNAL, words("a plan has an unexpected value instead of ", what));
}

int64_t integer_of(const Value& value) {
  if (value.kind != Value::Kind::kInteger && value.kind != Value::Kind::kBool)
    unexpected("an integer");
  return value.integer;
}

Tensor* tensor_of(const Value& value) {
  if (value.kind != Value::Kind::kTensor) unexpected("a tensor");
  return value.tensor;
}

Value scalar_of(Tensor* tensor, const Memory& memory) {
  if (elements(tensor->ndim, tensor->sizes()) != 1) unexpected("one element");
  const auto read = [&](auto kind) {
    memory.read(&kind, tensor, sizeof kind);
    return Value::of(int64_t(kind));
  };
  switch (tensor->dtype) {
    case GYR_INT64:
      return read(int64_t());
    case GYR_INT32:
      return read(int32_t());
    case GYR_INT16:
      return read(int16_t());
    case GYR_INT8:
      return read(int8_t());
    case GYR_UINT8:
      return read(uint8_t());
    case GYR_BOOL:
      return Value::of(int64_t(read(char()).integer != 0));
    default:
      unexpected("an integer or a bool");
  }
}

// Returns a tensor with a layout in the memory of another one, at a byte offset.
Tensor* within(Tensor* base, gyr_dtype dtype, int ndim, const int64_t* sizes,
               const int64_t* strides, int64_t offset) {
  Tensor* made = Tensor::make(dtype, ndim, sizes, strides);
  made->storage = base->storage ? base->storage->share() : nullptr;
  made->device = base->device;
  made->data = base->data ? base->data + offset : nullptr;
  return made;
}

// A range of numbers among the arguments of a call.
struct Numbers {
  const int64_t* data;
  int n;
};

Numbers numbers(const Given& given) {
  const Const* constant = given.constant;
  const size_t n = constant ? constant->integers.size() : given.n_computed;
  if (n > GYR_MAX_NDIM || (constant && constant->items.size() != n)) unexpected("sizes");
  return {constant ? constant->integers.data() : given.computed, int(n)};
}
gyr_dtype dtype(const Given& given) {
  const Const* constant = given.constant;
  if (!constant || constant->kind != Const::Kind::kType || !constant->dtype)
    unexpected("a dtype");
  return constant->dtype;
}
Value held(Given& given) {
  return given.constant ? Value::of(*given.constant) : std::move(given.value);
}
int64_t integer(const Given& given) {
  return integer_of(given.constant ? Value::of(*given.constant) : given.value);
}
Tensor* tensor(const Given& given) {
  if (!given.constant) return tensor_of(given.value);
  if (!given.constant->tensor) unexpected("a tensor");
  return given.constant->tensor;
}

// One run of a plan, with the operations that plan.h requires.
class Frame {
 public:
  template <class T>
  using Array = Scratch<T>;

  Frame(const Context& context, const Plan& plan, Value* arguments, Value* results)
      : context_(context), plan_(plan), registers_(size_t(plan.n_regs)), results_(results) {
    std::move(arguments, arguments + plan.n_args, registers_.begin());
  }

  bool load_int(int64_t reg, int64_t* out) {
    *out = integer_of(at(reg));
    return true;
  }
  bool no_number(Number found) {
    fail(GYR_ERROR_CHECK, found == Number::kBeyondRange ? "a size exceeds 64 bits"
                                                        : "a size is divided by zero");
  }

  bool pointer(int64_t reg, void** out) {
    const Value& value = at(reg);
    *out = value.kind == Value::Kind::kNone ? nullptr : tensor_of(value)->data;
    return true;
  }
  void begin(int64_t) {}
  void end() {}
  int64_t launch(const int64_t* words, void** buffers, int64_t* sizes) {
    if (!context_.profiler) return launch_now(words, buffers, sizes);
    const int64_t begin = now();
    const int64_t status = launch_now(words, buffers, sizes);
    const int64_t elapsed = now() - begin;
    context_.profiler(context_.profiled, launched(words).name.c_str(), elapsed);
    return status;
  }
  void failed(const int64_t* words, int64_t status, const int64_t*) {
    const Launched& of = launched(words);
    if (of.device)
      context_.memory.device->check(int32_t(status), gyr::words("kernel ", of.name).c_str());
    if (status >= 1 && size_t(status) <= of.checks.size())
      fail(GYR_ERROR_CHECK, of.checks[size_t(status - 1)]);
    fail(GYR_ERROR_CHECK, gyr::words("check ", status, " of kernel ", of.name, " failed"));
  }

  bool call_tuple(int64_t destination, int64_t function, int64_t args) {
    const Const& given = constant(args);
    Few<Given, kFewArguments> all(given.items.size());
    for (size_t k = 0; k < all.size(); k++) all[k].constant = &given.items[k];
    return keep(destination, called(constant(function), {all.data(), all.size()}, nullptr));
  }
  const int64_t* call(const int64_t* pc, const int64_t* ints) {
    const int64_t destination = pc[0];
    const Const& function = constant(pc[1]);
    const Const* names = pc[2] < 0 ? nullptr : &constant(pc[2]);
    Few<Given, kFewArguments> all(static_cast<size_t>(pc[3]));
    pc += 4;
    for (Given& given : all) pc = argument(given, pc, ints);
    keep(destination, called(function, {all.data(), all.size()}, names));
    return pc;
  }
  const int64_t* operate(const int64_t* pc, const int64_t* ints) {
    const Const& function = constant(pc[1]);
    const int64_t n = pc[2], n_numbers = pc[3];
    Values held;
    std::vector<Tensor*> tensors;
    pc += 4;
    for (int64_t k = 0; k < n; k++) {
      Tensor* tensor = tensor_of(at(pc[0]));
      const int64_t ndim = pc[1];
      if (ndim >= 0) {
        int64_t layout[2 * GYR_MAX_NDIM];
        for (int64_t d = 0; d < 2 * ndim; d++) layout[d] = ints[pc[5 + d]];
        const gyr_dtype dtype = dtype_of(function.items[size_t(k)].items[1].text);
        tensor = within(tensor, dtype, int(ndim), layout, layout + ndim, ints[pc[4]]);
        held.push_back(Value::of(tensor));
      }
      tensors.push_back(tensor);
      pc += ndim < 0 ? 2 : 5 + 2 * ndim;
    }
    std::vector<double> numbers(static_cast<size_t>(n_numbers));
    if (n_numbers) memcpy(numbers.data(), pc, sizeof(double) * size_t(n_numbers));
    watched(function, [&] { function.op->operate(tensors, numbers); });
    return pc + n_numbers;
  }

  const int64_t* conform(const int64_t* pc, const int64_t* ints) {
    const int ndim = int(pc[5]);
    Value& value = at(pc[0]);
    Tensor* given = tensor_of(value);
    const Const& wanted = constant(pc[1]);
    const int64_t* layout = pc + 6;
    bool same = given->dtype == wanted.dtype && given->ndim == ndim &&
                given->device == wanted.device;
    for (int k = 0; same && k < ndim; k++) same = given->sizes()[k] == ints[layout[k]];
    bool same_layout = same;
    for (int k = 0; same_layout && k < ndim; k++)
      same_layout = given->sizes()[k] < 2 || given->strides()[k] == ints[layout[ndim + k]];
    const bool empty = same && !elements(ndim, given->sizes());
    if (!same_layout && !empty) mend(value, wanted, same, ndim, layout, ints);
    return layout + 2 * ndim;
  }

  const int64_t* separate(const int64_t* pc) {
    const int64_t n = pc[1], m = pc[2];
    const int64_t* registers = pc + 3;
    for (int64_t k = 0; k < n; k++) {
      Tensor* own = tensor_of(at(registers[k]));
      bool alone = true;
      for (int64_t j = 0; alone && j < n + m; j++) {
        if (j >= k && j < n) continue;
        Tensor* other = tensor_of(at(registers[j]));
        const auto a = own->range(), b = other->range();
        alone = !(own->storage && own->storage == other->storage) &&
                (a.second <= b.first || b.second <= a.first);
      }
      if (!alone) at(registers[k]) = Value::of(context_.memory.laid_out(own, own->strides()));
    }
    return registers + n + m;
  }
  void drop(int64_t reg) { registers_[size_t(reg)] = Value(); }
  bool item(int64_t destination, int64_t reg, int64_t index) {
    const Value& source = at(reg);
    if (source.kind != Value::Kind::kList || size_t(index) >= source.list->size())
      unexpected("several results");
    registers_[size_t(destination)] = Value((*source.list)[size_t(index)]);
    return true;
  }
  void move(int64_t destination, int64_t source) {
    registers_[size_t(destination)] = Value(registers_[size_t(source)]);
  }
  bool give(const int64_t* pc, const int64_t* ints) {
    const int64_t n = *pc++;
    for (int64_t k = 0; k < n; k++) {
      Given given;
      pc = argument(given, pc, ints);
      results_[k] = held(given);
    }
    return true;
  }
  bool give_nothing() { return true; }

 private:
  Value& at(int64_t reg) {
    Value& found = registers_[size_t(reg)];
    if (found.kind == Value::Kind::kEmpty) unexpected("a register that is not empty");
    return found;
  }
  const Const& constant(int64_t k) const { return plan_.consts[size_t(k)]; }
  const Launched& launched(const int64_t* words) const { return plan_.launches[size_t(words[1])]; }
  bool keep(int64_t destination, Value value) {
    if (destination >= 0) registers_[size_t(destination)] = std::move(value);
    return true;
  }

  const int64_t* argument(Given& out, const int64_t* pc, const int64_t* ints) {
    const int64_t kind = pc[0], k = pc[1];
    switch (kind) {
      case ARG_REG:
        out.value = at(k);
        return pc + 2;
      case ARG_CONST:
        out.constant = &constant(k);
        return pc + 2;
      case ARG_INT:
        out.value = Value::of(ints[k]);
        return pc + 2;
      default:
        out.compute(size_t(k));
        for (int64_t i = 0; i < k; i++) out.computed[i] = ints[pc[2 + i]];
        return pc + 2 + k;
    }
  }

  bool holds(const Value& value) const {
    if (value.kind != Value::Kind::kTensor) return integer_of(value) != 0;
    return integer_of(scalar_of(value.tensor, context_.memory)) != 0;
  }

  int64_t launch_now(const int64_t* words, void** buffers, int64_t* sizes) {
    if (const auto* device = reinterpret_cast<const DeviceLaunch*>(words[4]))
      return launch_device(*this, device, buffers, words[2], sizes, words[3], words[5]);
    return reinterpret_cast<Kernel>(words[0])(buffers, sizes);
  }

  void mend(Value& value, const Const& wanted, bool sizes_fit, int ndim, const int64_t* slots,
            const int64_t* ints) {
    Tensor* given = value.tensor;
    int64_t layout[2 * GYR_MAX_NDIM];
    for (int k = 0; k < 2 * ndim; k++) layout[k] = ints[slots[k]];
    if (sizes_fit && wanted.truth) {
      value = Value::of(context_.memory.laid_out(given, layout + ndim));
      return;
    }
    const std::string& op = wanted.items[0].text;
    const std::string found =
        described(given->dtype, given->ndim, given->sizes(), given->strides());
    const std::string expected = described(wanted.dtype, ndim, layout, layout + ndim);
    if (!op.empty())
      fail(GYR_ERROR_CHECK,
           gyr::words(op, " returned ", found, ", but its meta function promised ", expected));
    fail(GYR_ERROR_INPUT, gyr::words("the input ", wanted.text, " is ", found,
                                     "; the program was compiled for ", expected));
  }

  Tensor* allocated(const Const& allocator, const Numbers& sizes, const Numbers& strides,
                    gyr_dtype dtype) {
    if (sizes.n != strides.n) unexpected("as many strides as sizes");
    gyr_tensor* out = allocator.place >= 0 && size_t(allocator.place) < context_.n_outputs
                          ? context_.outputs[size_t(allocator.place)]
                          : nullptr;
    if (out && out->dtype == dtype && out->ndim == sizes.n &&
        std::max<int32_t>(out->device_type, GYR_CPU) == allocator.device &&
        std::equal(sizes.data, sizes.data + sizes.n, out->sizes) &&
        std::equal(strides.data, strides.data + sizes.n, out->strides)) {
      Tensor* made = Tensor::make(dtype, sizes.n, sizes.data, strides.data);
      made->data = static_cast<char*>(out->data);
      made->device = allocator.device;
      made->place = allocator.place;
      return made;
    }
    return context_.memory.make(allocator.device, dtype, sizes.n, sizes.data, strides.data);
  }

  // Calls a function and reports its time to the profiler.
  template <class F>
  void watched(const Const& f, F&& function) {
    const int64_t begin = context_.profiler ? now() : 0;
    function();
    if (context_.profiler) context_.profiler(context_.profiled, f.text.c_str(), now() - begin);
  }

  // Returns the result of a call. The number of arguments has been checked.
  Value called(const Const& f, Arguments given, const Const* names) {
    switch (f.call) {
      case Call::kOperator: {
        Value found;
        watched(f, [&] { found = f.op->call(given, names); });
        return found;
      }
      case Call::kPack:
        return Value::of(taken(given, 0));
      case Call::kSizeOf:
      case Call::kStrideOf: {
        Tensor* of = tensor(given[0]);
        const int64_t dim = integer(given[1]);
        if (dim < 0 || dim >= of->ndim) unexpected("a dimension");
        return Value::of((f.call == Call::kSizeOf ? of->sizes() : of->strides())[dim]);
      }
      case Call::kInteger:
      case Call::kIdentity:
        return held(given[0]);
      case Call::kReinterpret: {
        Tensor* base = tensor(given[0]);
        const Numbers sizes = numbers(given[1]), strides = numbers(given[2]);
        if (sizes.n != strides.n) unexpected("as many strides as sizes");
        return Value::of(within(base, base->dtype, sizes.n, sizes.data, strides.data,
                                integer(given[3]) * int64_t(base->item)));
      }
      case Call::kOverStorage: {
        const Numbers sizes = numbers(given[1]), strides = numbers(given[2]);
        if (sizes.n != strides.n) unexpected("as many strides as sizes");
        return Value::of(within(tensor(given[0]), dtype(given[3]), sizes.n, sizes.data,
                                strides.data, integer(given[4])));
      }
      case Call::kAssertTrue:
        if (!integer(given[0]))
          fail(GYR_ERROR_CHECK, given[1].constant ? given[1].constant->text : "a check failed");
        return Value::none();
      case Call::kReadScalar:
        return scalar_of(tensor(given[0]), context_.memory);
      case Call::kAllocator:
        return Value::of(allocated(f, numbers(given[0]), numbers(given[1]), dtype(given[2])));
      case Call::kWithin:
      case Call::kCalling:
        return Value::of(inner(f.plan, taken(given, 0)));
      case Call::kBranching: {
        const int64_t chosen = holds(held(given[0])) ? f.plan : f.other;
        return Value::of(inner(chosen, taken(given, 1)));
      }
      case Call::kLooping:
        return Value::of(looped(f, taken(given, 0)));
      case Call::kRepeating:
        return Value::of(repeated(f, integer(given[0]), taken(given, 1)));
      default:
        unexpected("a function that is called");
    }
  }

  static Values taken(Arguments given, size_t from) {
    Values out;
    out.reserve(given.n - from);
    for (size_t k = from; k < given.n; k++) out.push_back(held(given[k]));
    return out;
  }

  Values inner(int64_t number, Values arguments) const {
    const Plan& plan = context_.plans[size_t(number)];
    if (int64_t(arguments.size()) != plan.n_args)
      fail(GYR_ERROR_INTERNAL, "a plan got a wrong number of arguments");
    Values results(size_t(plan.n_results));
    run_plan(context_, plan, arguments.data(), results.data());
    return results;
  }

  // Splits the arguments of a loop, of which the carried values come first.
  static Values split(const Const& f, Values& all) {
    if (int64_t(all.size()) < f.carried) unexpected("the values carried by a loop");
    Values carried(all.begin(), all.begin() + f.carried);
    all.erase(all.begin(), all.begin() + f.carried);
    return carried;
  }
  static Values joined(Values first, const Values& captured) {
    first.insert(first.end(), captured.begin(), captured.end());
    return first;
  }

  Values looped(const Const& f, Values captured) {
    Values values = split(f, captured);
    for (;;) {
      const Values test = inner(f.other, joined(values, captured));
      if (test.empty()) unexpected("a condition");
      if (!holds(test[0])) return values;
      values = inner(f.plan, joined(std::move(values), captured));
    }
  }

  Values repeated(const Const& f, int64_t count, Values captured) {
    Values values = split(f, captured);
    for (int64_t k = 0; k < count; k++) {
      Values step{Value::of(k)};
      step.insert(step.end(), values.begin(), values.end());
      values = inner(f.plan, joined(std::move(step), captured));
    }
    return values;
  }

  const Context& context_;
  const Plan& plan_;
  Few<Value, 32> registers_;
  Value* results_;
};

}  // namespace

Value Value::of(Values list) {
  Value made(Kind::kList);
  made.list = new Values(std::move(list));
  return made;
}

Value Value::of(const Const& constant) {
  switch (constant.kind) {
    case Const::Kind::kNone:
      return none();
    case Const::Kind::kInteger: {
      Value made(constant.truth ? Kind::kBool : Kind::kInteger);
      made.integer = constant.integer;
      return made;
    }
    case Const::Kind::kReal: {
      Value made(Kind::kReal);
      made.real = constant.real;
      return made;
    }
    case Const::Kind::kTensor:
      return of(constant.tensor->share());
    default:
      unexpected("a value");
  }
}

Value::Value(const Value& other) : kind(other.kind), integer(other.integer) {
  if (kind == Kind::kTensor) tensor->share();
  else if (kind == Kind::kList) list = new Values(*other.list);
}

void Value::leave_list() { delete list; }

void run_plan(const Context& context, const Plan& plan, Value* arguments, Value* results) {
  Frame frame(context, plan, arguments, results);
  Scratch<int64_t> ints(int64_t(plan.ints.size()));
  std::copy(plan.ints.begin(), plan.ints.end(), ints.data);
  execute(frame, plan.code.data(), ints.data);
}

}  // namespace gyr
