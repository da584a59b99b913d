// The C interface: checks arguments, and reports failures as a status and a message.

#include <pthread.h>

#include <algorithm>
#include <climits>
#include <mutex>
#include <new>

#include "error.h"
#include "executor.h"
#include "few.h"
#include "forks.h"
#include "operators.h"
#include "package.h"

extern "C" void omp_set_num_threads(int);

namespace gyr {

namespace {

thread_local std::string last_error;

// Runs a function. A failure becomes the returned status, and its message the last error.
template <class F>
gyr_status guarded(F&& function) noexcept {
  try {
    try {
      function();
      return GYR_OK;
    } catch (Error& error) {
      last_error = std::move(error.text);
      return error.status;
    } catch (const std::bad_alloc&) {
      last_error = "out of memory";
      return GYR_ERROR_MEMORY;
    } catch (const std::exception& error) {
      last_error = error.what();
      return GYR_ERROR_INTERNAL;
    }
  } catch (...) {
    return GYR_ERROR_MEMORY;  // while copying the message
  }
}

void need(const void* pointer, const char* name) {
  if (!pointer) fail(GYR_ERROR_ARGUMENT, words(name, " is null"));
}

void watch_forks() {
  static const int failed = pthread_atfork(nullptr, nullptr, in_child);
  if (failed) fail(GYR_ERROR_MEMORY, "out of memory");
}

void run_in_fork() {
  if (just_forked()) omp_set_num_threads(1);
}

// The weights and the profiler of an instance, replaced as a unit.
struct State {
  std::vector<std::shared_ptr<Tensor>> weights;
  std::vector<std::vector<std::shared_ptr<Tensor>>> constants;  // by entry point
  gyr_profiler profiler = nullptr;
  void* profiled = nullptr;
};

// Returns a copy of a tensor with other strides that outlives the call. To plans its memory is
// external, so that no result shares it.
std::shared_ptr<Tensor> lasting_copy(const Memory& memory, int32_t device, const int64_t* strides,
                                     Tensor* from) {
  const std::shared_ptr<Tensor> own(
      memory.make(device, from->dtype, from->ndim, from->sizes(), strides, true), Freeing());
  memory.copy(own->device, own->data, strides, from);
  Own made(Tensor::make(own->dtype, own->ndim, own->sizes(), strides));
  made->data = own->data;
  made->device = own->device;
  made->lasting = true;
  return {made.release(), [own](Tensor* tensor) { tensor->free(); }};
}

}  // namespace

}  // namespace gyr

struct gyr_package {
  std::shared_ptr<const gyr::Package> held;
  std::mutex lock;  // guards `first`
  std::weak_ptr<const gyr::State> first;  // of an instance with the default allocator

  std::shared_ptr<const gyr::State> shared() {
    const std::lock_guard<std::mutex> alone(lock);
    return first.lock();
  }
  void share(const std::shared_ptr<const gyr::State>& state) {
    const std::lock_guard<std::mutex> alone(lock);
    first = state;
  }
};

struct gyr_instance {
  std::shared_ptr<const gyr::Package> package;
  gyr::Memory memory;
  std::mutex lock;  // guards only the pointer `state`
  std::shared_ptr<const gyr::State> state;
  std::mutex changing;  // held while a new state is derived from the old one

  std::shared_ptr<const gyr::State> now() {
    const std::lock_guard<std::mutex> held(lock);
    return state;
  }
  void become(std::shared_ptr<const gyr::State> next) {
    const std::lock_guard<std::mutex> held(lock);
    state.swap(next);
  }
};

namespace gyr {

namespace {

int32_t type_of(const gyr_tensor& given) { return given.device_type ? given.device_type : GYR_CPU; }

// Validates a caller's tensor; without strides, sets `strides` to those of a contiguous one.
void check_fields(const gyr_tensor& given, const std::string& what, gyr_status status,
                  const Device* device, int64_t* strides) {
  const auto wrong = [&](const char* why) { fail(status, words(what, " ", why)); };
  if (!gyr_dtype_size(given.dtype)) wrong("has no dtype");
  if (given.ndim < 0 || given.ndim > GYR_MAX_NDIM) wrong("has an invalid number of dimensions");
  if (given.ndim && !given.sizes) wrong("has no sizes");
  const bool host = type_of(given) == GYR_CPU && !given.device_index;
  const bool there =
      device && given.device_type == GYR_CUDA && given.device_index == device->index();
  if (!host && !there) wrong("is on a missing or different device");
  for (int k = 0; k < given.ndim; k++) {
    if (given.sizes[k] < 0) wrong("has a negative size");
    if (given.strides && given.strides[k] < 0) wrong("has a negative stride");
  }
  if (given.strides) std::copy(given.strides, given.strides + given.ndim, strides);
  else contiguous(given.ndim, given.sizes, strides);
  const size_t item = gyr_dtype_size(given.dtype);
  const size_t part = item == 16 || given.dtype == GYR_COMPLEX64 ? item / 2 : item;
  if (extent(given.ndim, given.sizes, strides, item) && !given.data) wrong("has no data");
  if (reinterpret_cast<uintptr_t>(given.data) % part) wrong("is not aligned to its elements");
}

// The symbols of a call that are bound so far.
class Symbols {
 public:
  explicit Symbols(const Entry& entry) : entry_(entry), known_(entry.symbols.size()) {
    std::fill(known_.begin(), known_.end(), -1);
  }

  // Returns why a size does not match, or an empty string, and binds its symbol.
  std::string mismatch(int64_t size, const gyr_size& wanted) {
    if (wanted.symbol < 0)
      return size == wanted.offset ? "" : words(size, ", not ", wanted.offset);
    const gyr_symbol& symbol = entry_.symbols[size_t(wanted.symbol)];
    int64_t scaled;
    if (__builtin_sub_overflow(size, wanted.offset, &scaled) || scaled == INT64_MIN)
      return "out of range";
    const int64_t number = scaled / wanted.factor;
    if (scaled % wanted.factor)
      return words(size, ", which is not ", wanted.factor, "*", symbol.name, "+", wanted.offset);
    int64_t& known = known_[size_t(wanted.symbol)];
    if (known >= 0)
      return known == number ? "" : words(size, ", but ", symbol.name, " is ", known);
    if (number < symbol.least || number > symbol.most)
      return words(size, ", and ", symbol.name, " must be ", symbol.least,
                   symbol.most == INT64_MAX ? " or more" : words(" to ", symbol.most));
    known = number;
    return "";
  }

 private:
  const Entry& entry_;
  Few<int64_t> known_;
};

// Returns an input as the value for a plan.
Value value_of_input(const gyr_tensor& given, const Signature& wanted, bool number,
                     const Device* device, Symbols& symbols) {
  const auto what = [&] { return words("the input ", wanted.name); };
  const auto wrong = [&](const std::string& why) {
    fail(GYR_ERROR_INPUT, words(what(), " ", why, "; it was compiled for ", wanted.text));
  };
  int64_t strides[GYR_MAX_NDIM];
  check_fields(given, what(), GYR_ERROR_INPUT, device, strides);
  if (type_of(given) != wanted.device) wrong("is on another device");
  if (given.dtype != wanted.dtype) wrong(words("is ", gyr_dtype_name(given.dtype)));
  if (given.ndim != wanted.ndim) wrong(words("has sizes ", listed(given.ndim, given.sizes)));
  if (number) {
    int64_t value;
    memcpy(&value, given.data, sizeof value);
    const std::string why = symbols.mismatch(value, wanted.sizes[0]);
    if (!why.empty()) wrong(words("is ", why));
    return Value::of(value);
  }
  for (int k = 0; k < given.ndim; k++) {
    const std::string why = symbols.mismatch(given.sizes[k], wanted.sizes[size_t(k)]);
    if (!why.empty())
      wrong(words("has sizes ", listed(given.ndim, given.sizes), ": size ", k, " is ", why));
  }
  Tensor* made = Tensor::make(given.dtype, given.ndim, given.sizes, strides);
  made->data = static_cast<char*>(given.data);
  made->device = wanted.device;
  return Value::of(made);
}

// The caller's outputs of one call. Those already set are reset unless the call succeeds.
class Outputs {
 public:
  Outputs(const Entry& entry, gyr_tensor* outputs, size_t count, const Memory& memory)
      : outputs_(outputs), memory_(memory), places_(count), buffers_(count) {
    for (size_t k = 0; k < count; k++) {
      gyr_tensor& out = outputs[k];
      Buffer& buffer = buffers_[k];
      places_[k] = nullptr;
      if (!out.data) continue;
      int64_t strides[GYR_MAX_NDIM];
      check_fields(out, words("the output ", k), GYR_ERROR_OUTPUT, memory.device.get(), strides);
      if (entry.outputs[k].dtype && out.dtype != entry.outputs[k].dtype)
        fail(GYR_ERROR_OUTPUT, words("the output ", k, " is ", gyr_dtype_name(out.dtype), ", not ",
                                     entry.outputs[k].text));
      buffer.strides.assign(strides, strides + out.ndim);
      buffer.given = out;
      buffer.given.strides = buffer.strides.data();
      places_[k] = &buffer.given;
    }
  }
  ~Outputs() {
    for (size_t k = 0; k < buffers_.size(); k++)
      if (buffers_[k].filled) gyr_tensor_release(outputs_ + k);
  }

  // A buffer that overlaps other memory is filled only at the end.
  void keep_apart(const gyr_tensor* inputs, size_t n_inputs) {
    for (size_t k = 0; k < places_.size(); k++) {
      if (!places_[k]) continue;
      const auto output_range = range(outputs_[k], buffers_[k].strides.data());
      for (size_t j = 0; j < n_inputs && places_[k]; j++) {
        int64_t strides[GYR_MAX_NDIM];
        const gyr_tensor& in = inputs[j];
        if (in.strides) std::copy(in.strides, in.strides + in.ndim, strides);
        else contiguous(in.ndim, in.sizes, strides);
        if (overlap(output_range, range(in, strides))) places_[k] = nullptr;
      }
      for (size_t j = 0; j < places_.size() && places_[k]; j++)
        if (j != k && outputs_[j].data &&
            overlap(output_range, range(outputs_[j], buffers_[j].strides.data())))
          places_[k] = nullptr;
    }
  }

  gyr_tensor* const* places() const { return places_.data(); }

  // Sets an output to a result, which may be consumed.
  void put(size_t k, Value value) {
    gyr_tensor& out = outputs_[k];
    switch (value.kind) {
      case Value::Kind::kTensor:
        return put_tensor(k, value);
      case Value::Kind::kInteger:
        return put_number(k, GYR_INT64, &value.integer);
      case Value::Kind::kReal:
        return put_number(k, GYR_FLOAT64, &value.real);
      case Value::Kind::kBool: {
        const char byte = char(value.integer != 0);
        return put_number(k, GYR_BOOL, &byte);
      }
      case Value::Kind::kNone:
        if (out.data) fail(GYR_ERROR_OUTPUT, words("the output ", k, " is none"));
        buffers_[k].filled = true;
        out = gyr_tensor{};
        return;
      default:
        fail(GYR_ERROR_INTERNAL, words("the output ", k, " is not a tensor"));
    }
  }

  void keep() {
    for (Buffer& buffer : buffers_) buffer.filled = false;
  }

 private:
  using Range = std::pair<const char*, const char*>;
  static Range range(const gyr_tensor& of, const int64_t* strides) {
    const auto* data = static_cast<const char*>(of.data);
    return {data, data + extent(of.ndim, of.sizes, strides, gyr_dtype_size(of.dtype))};
  }
  static bool overlap(const Range& a, const Range& b) {
    return a.first < b.second && b.first < a.second;
  }

  void put_number(size_t k, gyr_dtype dtype, const void* from) {
    Tensor* made = Tensor::make(dtype, 0, nullptr, nullptr);
    Value held = Value::of(made);
    made->data = const_cast<char*>(static_cast<const char*>(from));
    put_tensor(k, held);
  }

  void put_tensor(size_t k, Value& value) {
    Tensor* result = value.tensor;
    gyr_tensor& out = outputs_[k];
    const int ndim = result->ndim;
    if (out.data) {
      if (result->place == int32_t(k)) return;
      const bool fits = out.dtype == result->dtype && out.ndim == ndim &&
                        std::equal(result->sizes(), result->sizes() + ndim, out.sizes);
      if (!fits)
        fail(GYR_ERROR_OUTPUT,
             words("the output ", k, " is ", gyr_dtype_name(out.dtype), listed(out.ndim, out.sizes),
                   ", the result ", gyr_dtype_name(result->dtype), listed(ndim, result->sizes())));
      if (type_of(out) != result->device)
        fail(GYR_ERROR_OUTPUT, words("the output ", k, " is on another device than the result"));
      memory_.copy(result->device, out.data, buffers_[k].strides.data(), result);
      return;
    }
    Own made;
    if (result->storage && result->users == 1 && !result->lasting) {
      made.reset(result);
      value.kind = Value::Kind::kEmpty;
    } else if (result->storage) {
      made.reset(Tensor::make(result->dtype, ndim, result->sizes(), result->strides()));
      made->storage = result->storage->share();
      made->data = result->data;
      made->device = result->device;
    } else {
      made.reset(memory_.laid_out(result, result->strides()));
    }
    Tensor* given = made.release();
    const int32_t index = given->device == GYR_CPU ? 0 : memory_.device->index();
    buffers_[k].filled = true;
    out = {given->data, given->dtype, ndim, given->sizes(), given->strides(), given->device, index,
           given};
  }

  struct Buffer {
    gyr_tensor given;  // the caller's, with strides
    std::vector<int64_t> strides;
    bool filled = false;
  };

  gyr_tensor* outputs_;
  const Memory& memory_;
  Few<gyr_tensor*, 4> places_;
  Few<Buffer, 4> buffers_;
};

void run_entry(gyr_instance& instance, size_t place, const gyr_tensor* inputs, size_t n_inputs,
               gyr_tensor* outputs, size_t n_outputs, void* const* stream) {
  if (place >= instance.package->entries.size())
    fail(GYR_ERROR_ARGUMENT, words("there is no entry point ", place));
  const Entry& entry = instance.package->entries[place];
  if (n_inputs != entry.inputs.size() || n_outputs != entry.outputs.size())
    fail(GYR_ERROR_CALL, words(entry.name, " takes ", entry.inputs.size(), " inputs and ",
                               entry.outputs.size(), " outputs, not ", n_inputs, " and ", n_outputs));
  if (n_inputs) need(inputs, "inputs");
  if (n_outputs) need(outputs, "outputs");
  run_in_fork();
  Memory memory = instance.memory;
  const Device* device = memory.device.get();
  const Device::Current here(device);
  if (device) memory.stream = stream ? *stream : current_stream(device->index());
  const Surroundings around(device, memory.stream);
  const OnStream queued(memory.stream);
  const std::shared_ptr<const State> state = instance.now();
  Symbols symbols(entry);
  const Plan& plan = entry.plans.back();
  Few<Value, 16> given(size_t(plan.n_args));
  Value* next = given.data();
  const int64_t none = 0, one = 1;
  for (int64_t k = 0; k < entry.tokens; k++)
    *next++ = Value::of(Tensor::make(GYR_FLOAT32, 1, &none, &one));
  for (const size_t w : entry.weights) *next++ = Value::of(state->weights[w].get());
  for (const auto& constant : state->constants[place]) *next++ = Value::of(constant.get());
  for (const Argument& a : entry.arguments) {
    const size_t k = size_t(a.input);
    *next++ = a.input < 0 ? Value::of(a.constant)
                          : value_of_input(inputs[k], entry.inputs[k], a.number, device, symbols);
  }
  Outputs results(entry, outputs, n_outputs, memory);
  results.keep_apart(inputs, n_inputs);
  Few<Value> returned(entry.results.size()), found(size_t(plan.n_results));
  for (size_t k = 0; k < returned.size(); k++)
    if (const int64_t place = entry.results[k].given; place >= 0)
      returned[k] = Value(given[size_t(entry.tokens + place)]);
  const Context context{entry.plans,     memory,           state->profiler,
                        state->profiled, results.places(), n_outputs};
  run_plan(context, plan, given.data(), found.data());
  for (size_t k = 0; k < entry.results.size(); k++) {
    const size_t at = size_t(entry.tokens) + k;
    if (entry.results[k].given >= 0) results.put(k, std::move(returned[k]));
    else if (at < found.size()) results.put(k, std::move(found[at]));
    else fail(GYR_ERROR_INTERNAL, "a plan returns too few results");
  }
  results.keep();
}

// Packs a weight, or a constant that is a result of a plan.
std::shared_ptr<Tensor> packed_by(const Packing& of, const State& state, const Few<Value>& results) {
  std::vector<Given> given(of.arguments.size());
  for (size_t k = 0; k < given.size(); k++) {
    const Packing::Argument& from = of.arguments[k];
    if (from.weight >= 0) given[k].value = Value::of(state.weights[size_t(from.weight)].get());
    else if (from.constant >= 0) given[k].value = results[size_t(from.constant)];
    else given[k].constant = &from.value;
  }
  return {of.op->pack({given.data(), given.size()}).release(), Freeing()};
}

// Computes the constants that depend only on the weights of an entry point.
std::vector<std::shared_ptr<Tensor>> constants_of(const Constants& of, const Memory& memory,
                                                  const State& state) {
  std::vector<std::shared_ptr<Tensor>> made;
  if (!of.count()) return made;
  run_in_fork();
  const Surroundings around(memory.device.get(), memory.stream);
  const OnStream queued(memory.stream);
  Few<Value, 16> given(of.weights.size());
  for (size_t k = 0; k < given.size(); k++)
    given[k] = Value::of(state.weights[of.weights[k]].get());
  Few<Value> found(of.plans.empty() ? 0 : size_t(of.plans.back().n_results));
  if (!of.plans.empty()) {
    const Context context{of.plans, memory, nullptr, nullptr, nullptr, 0};
    run_plan(context, of.plans.back(), given.data(), found.data());
  }
  for (size_t k = 0; k < found.size(); k++) {
    if (found[k].kind != Value::Kind::kTensor) fail(GYR_ERROR_FILE, "a constant is not a tensor");
    if (k >= of.taken) continue;
    Tensor* tensor = found[k].tensor;
    made.push_back(lasting_copy(memory, tensor->device, tensor->strides(), tensor));
  }
  for (const Packing& packing : of.packed) made.push_back(packed_by(packing, state, found));
  return made;
}

// Computes the constants of weights that differ from those of another state, if any.
void compute_constants(const Package& package, const Memory& memory, State& state,
                       const State* before) {
  state.constants.clear();
  for (const Entry& entry : package.entries) {
    const Constants& of = entry.constants;
    const auto same = [&](size_t w) { return before->weights[w] == state.weights[w]; };
    const auto packs_same = [&](const Packing& packing) {
      return std::all_of(packing.arguments.begin(), packing.arguments.end(),
                         [&](const auto& a) { return a.weight < 0 || same(size_t(a.weight)); });
    };
    const bool known = before && std::all_of(of.weights.begin(), of.weights.end(), same) &&
                       std::all_of(of.packed.begin(), of.packed.end(), packs_same);
    state.constants.push_back(known ? before->constants[state.constants.size()]
                                    : constants_of(entry.constants, memory, state));
  }
}

// Returns the state of a new instance, which shares what no call writes with another's first, if any.
std::shared_ptr<State> first_state(const Package& package, const Memory& memory,
                                   const State* other) {
  const Device::Current here(memory.device.get());
  auto made = std::make_shared<State>();
  for (const Weight& w : package.weights) {
    Tensor* stored = w.stored.get();
    const int ndim = w.signature.ndim;
    const bool same_layout = same_strides(ndim, w.sizes.data(), stored->strides(), w.strides.data());
    if (other && !w.signature.written)
      made->weights.push_back(other->weights[made->weights.size()]);
    else if (same_layout && !w.signature.written)
      made->weights.emplace_back(stored, [](Tensor*) {});
    else
      made->weights.push_back(
          lasting_copy(memory, w.signature.device, w.strides.data(), stored));
  }
  compute_constants(package, memory, *made, other);
  if (memory.device) memory.device->wait();
  return made;
}

size_t weight_place(const Package& package, const char* name) {
  need(name, "the name of a weight");
  for (size_t k = 0; k < package.weights.size(); k++)
    if (package.weights[k].signature.name == name) return k;
  fail(GYR_ERROR_WEIGHT, words("there is no weight ", name));
}

std::shared_ptr<Tensor> new_weight(const gyr_instance& instance, const Weight& like,
                                   const gyr_tensor& given) {
  const std::string what = words("weight ", like.signature.name);
  int64_t strides[GYR_MAX_NDIM];
  check_fields(given, what, GYR_ERROR_WEIGHT, instance.memory.device.get(), strides);
  if (given.dtype != like.signature.dtype || given.ndim != like.signature.ndim ||
      !std::equal(like.sizes.begin(), like.sizes.end(), given.sizes))
    fail(GYR_ERROR_WEIGHT, words(what, " is ", like.signature.text, ", not ",
                                 gyr_dtype_name(given.dtype), listed(given.ndim, given.sizes)));
  if (type_of(given) != GYR_CPU && like.signature.device == GYR_CPU)
    fail(GYR_ERROR_WEIGHT, words(what, " is one of the CPU"));
  Own from(Tensor::make(given.dtype, given.ndim, given.sizes, strides));
  from->data = static_cast<char*>(given.data);
  from->device = type_of(given);
  return lasting_copy(instance.memory, like.signature.device, like.strides.data(), from.get());
}

}  // namespace

}  // namespace gyr

using gyr::guarded;
using gyr::need;

int32_t gyr_abi_version(void) { return GYR_ABI_VERSION; }

const char* gyr_last_error(void) { return gyr::last_error.c_str(); }

const char* gyr_status_name(gyr_status status) {
  static const char* const names[] = {
      "GYR_OK",           "GYR_ERROR_ARGUMENT", "GYR_ERROR_FILE",  "GYR_ERROR_FORMAT",
      "GYR_ERROR_ALTERED", "GYR_ERROR_MISFIT",   "GYR_ERROR_CALL",  "GYR_ERROR_INPUT",
      "GYR_ERROR_OUTPUT", "GYR_ERROR_WEIGHT",   "GYR_ERROR_MEMORY", "GYR_ERROR_CHECK",
      "GYR_ERROR_INTERNAL", "GYR_ERROR_OPERATOR", "GYR_ERROR_DEVICE"};
  return status < 0 || status > GYR_ERROR_DEVICE ? "?" : names[status];
}

void gyr_set_threads(int32_t count) { omp_set_num_threads(std::max(count, 1)); }

gyr_status gyr_package_open(const char* path, const gyr_open_options* options,
                            gyr_package** package) {
  return gyr_package_open_on(path, options, -1, package);
}

gyr_status gyr_package_open_on(const char* path, const gyr_open_options* options,
                               int32_t device_index, gyr_package** package) {
  return guarded([&] {
    need(path, "path");
    need(package, "package");
    gyr::watch_forks();
    try {
      auto held = std::make_shared<const gyr::Package>(
          path, options ? *options : gyr_open_options{}, device_index);
      *package = new gyr_package{std::move(held), {}, {}};
    } catch (gyr::Error& error) {
      error.text = gyr::words(path, ": ", error.text);
      throw;
    }
  });
}

void gyr_package_close(gyr_package* package) { delete package; }

const char* gyr_package_isa(const gyr_package* package) {
  return package ? package->held->isa.c_str() : "";
}

size_t gyr_package_entries(const gyr_package* package) {
  return package ? package->held->entries.size() : 0;
}

gyr_status gyr_package_entry(const gyr_package* package, size_t place, gyr_entry* entry) {
  return guarded([&] {
    need(package, "package");
    need(entry, "entry");
    if (place >= package->held->entries.size())
      gyr::fail(GYR_ERROR_ARGUMENT, gyr::words("there is no entry point ", place));
    const gyr::Entry& found = package->held->entries[place];
    *entry = {found.name.c_str(),         found.inputs.size(),        found.outputs.size(),
              found.symbols.size(),       found.input_values.data(),  found.output_values.data(),
              found.symbols.data()};
  });
}

gyr_status gyr_package_find(const gyr_package* package, const char* name, size_t* place) {
  return guarded([&] {
    need(package, "package");
    need(name, "name");
    need(place, "place");
    const auto& entries = package->held->entries;
    for (size_t k = 0; k < entries.size(); k++)
      if (entries[k].name == name) return void(*place = k);
    gyr::fail(GYR_ERROR_ARGUMENT, gyr::words("there is no entry point ", name));
  });
}

size_t gyr_package_weights(const gyr_package* package) {
  return package ? package->held->weights.size() : 0;
}

gyr_status gyr_package_weight(const gyr_package* package, size_t place, gyr_value* weight) {
  return guarded([&] {
    need(package, "package");
    need(weight, "weight");
    if (place >= package->held->weights.size())
      gyr::fail(GYR_ERROR_ARGUMENT, gyr::words("there is no weight ", place));
    *weight = gyr::value_of(package->held->weights[place].signature);
  });
}

gyr_status gyr_instance_create(gyr_package* package, const gyr_allocator* allocator,
                               gyr_instance** instance) {
  return guarded([&] {
    need(package, "package");
    need(instance, "instance");
    if (allocator && (!allocator->allocate || !allocator->release))
      gyr::fail(GYR_ERROR_ARGUMENT, "an allocator lacks a function");
    auto made = std::make_unique<gyr_instance>();
    made->package = package->held;
    made->memory = gyr::Memory::of(allocator, made->package->device);
    const auto other = allocator ? nullptr : package->shared();
    made->state = gyr::first_state(*made->package, made->memory, other.get());
    if (!allocator) package->share(made->state);
    *instance = made.release();
  });
}

void gyr_instance_close(gyr_instance* instance) { delete instance; }

gyr_status gyr_run(gyr_instance* instance, size_t entry, const gyr_tensor* inputs, size_t n_inputs,
                   gyr_tensor* outputs, size_t n_outputs) {
  return guarded([&] {
    need(instance, "instance");
    gyr::run_entry(*instance, entry, inputs, n_inputs, outputs, n_outputs, nullptr);
  });
}

gyr_status gyr_run_on(gyr_instance* instance, size_t entry, const gyr_tensor* inputs,
                      size_t n_inputs, gyr_tensor* outputs, size_t n_outputs, void* stream) {
  return guarded([&] {
    need(instance, "instance");
    gyr::run_entry(*instance, entry, inputs, n_inputs, outputs, n_outputs, &stream);
  });
}

void gyr_tensor_release(gyr_tensor* tensor) {
  if (!tensor || !tensor->owner) return;
  static_cast<gyr::Tensor*>(tensor->owner)->free();
  *tensor = gyr_tensor{};
}

gyr_status gyr_instance_update(gyr_instance* instance, const char* const* names,
                               const gyr_tensor* tensors, size_t count) {
  return guarded([&] {
    need(instance, "instance");
    if (count) {
      need(names, "names");
      need(tensors, "tensors");
    }
    const std::lock_guard<std::mutex> alone(instance->changing);
    const gyr::Device* device = instance->memory.device.get();
    const gyr::Device::Current here(device);
    if (device) device->wait();
    const auto before = instance->now();
    auto next = std::make_shared<gyr::State>(*before);
    for (size_t k = 0; k < count; k++) {
      const size_t place = gyr::weight_place(*instance->package, names[k]);
      const gyr::Weight& like = instance->package->weights[place];
      next->weights[place] = gyr::new_weight(*instance, like, tensors[k]);
    }
    gyr::compute_constants(*instance->package, instance->memory, *next, before.get());
    if (device) device->wait();
    instance->become(std::move(next));
  });
}

gyr_status gyr_instance_read(gyr_instance* instance, const char* name, gyr_tensor* tensor) {
  return guarded([&] {
    need(instance, "instance");
    need(tensor, "tensor");
    const size_t place = gyr::weight_place(*instance->package, name);
    const auto state = instance->now();
    gyr::Entry like;
    like.outputs.push_back(instance->package->weights[place].signature);
    const gyr::Device::Current here(instance->memory.device.get());
    gyr::Outputs out(like, tensor, 1, instance->memory);
    out.put(0, gyr::Value::of(state->weights[place].get()));
    if (here.device()) here.device()->wait();
    out.keep();
  });
}

gyr_status gyr_instance_profile(gyr_instance* instance, gyr_profiler profiler, void* context) {
  return guarded([&] {
    need(instance, "instance");
    const std::lock_guard<std::mutex> alone(instance->changing);
    auto next = std::make_shared<gyr::State>(*instance->now());
    next->profiler = profiler;
    next->profiled = context;
    instance->become(std::move(next));
  });
}
