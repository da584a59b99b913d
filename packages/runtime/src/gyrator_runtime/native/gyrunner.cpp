// The native runner: executes a whole list of host instructions in one call from Python.
//
// plan.h, operators.h and unchanged.h are prepended to this source; plan.h interprets the words of a plan. Registers
// and integer slots are on the C stack of the call, so that a plan can run in many threads and
// recursively. It includes only Python.h and calls PyTorch through function pointers: one that PyTorch
// exports for the address of a tensor's data, and those of its C ABI (shim.py).

#include <time.h>

namespace {

constexpr int64_t kMaxTensors = 4;  // of an OP_OPERATE that runs without Python
constexpr int64_t kMaxRank = 8;     // of a tensor created for one

struct Timing {
  int64_t count, total, least;
};

struct Plan {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* constants;  // tuple
  PyObject* checks;  // tuple, one handler per launch: callable(number, buffers, sizes) -> exception
  PyObject* tensor_type;
  PyObject* parameter_type;
  PyObject* watchers;  // tuple of callables; if one returns true, operators are observed
  DataPtr data_ptr;
  Shim shim;
  int64_t tensor_offset;  // of the at::Tensor in a Python tensor object; 0: no shim
  int64_t key_offset;      // of the dispatch keys in the object of an at::Tensor; 0: unknown
  int64_t storage_offset;  // of the pointer to its storage there; 0: unknown
  uint64_t pending;        // dispatch key bits of a pending conjugation or negation
  int64_t* code;
  int64_t* ints;
  Timing* timings;  // null unless the plan is timed
  Py_ssize_t n_code, n_ints, n_args, n_registers, n_launches;
  int boxed;
};

// Registers own their objects; leaving the scope, also on an error, releases all of them.
struct Registers {
  Scratch<PyObject*> slots;
  Py_ssize_t n;
  explicit Registers(Py_ssize_t n_) : slots(n_), n(n_) {
    if (slots.data) memset(slots.data, 0, sizeof(PyObject*) * n);
  }
  ~Registers() {
    if (!slots.data) return;
    for (Py_ssize_t i = 0; i < n; i++) Py_XDECREF(slots.data[i]);
  }
  void set(int64_t i, PyObject* value) {
    PyObject* old = slots.data[i];
    slots.data[i] = value;
    Py_XDECREF(old);
  }
};

int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// Only an empty tensor may lack memory: fake and meta tensors have elements but no memory.
bool allow_null(PyObject* tensor) {
  PyObject* number = PyObject_CallMethod(tensor, "numel", nullptr);
  if (!number) return false;
  const long long elements = PyLong_AsLongLong(number);
  Py_DECREF(number);
  if (elements == -1 && PyErr_Occurred()) return false;
  if (elements == 0) return true;
  PyErr_Format(PyExc_RuntimeError, "gyrator: a kernel got a %.200s without memory",
               Py_TYPE(tensor)->tp_name);
  return false;
}

// Returns false with an exception set on failure. None becomes the null pointer.
bool pointer_of(Plan* plan, PyObject* value, void** out) {
  if (value == Py_None) {
    *out = nullptr;
    return true;
  }
  if (!value) {
    PyErr_SetString(PyExc_RuntimeError, "gyrator: a launch reads an empty register");
    return false;
  }
  if (!PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(plan->tensor_type))) {
    PyErr_Format(PyExc_TypeError, "gyrator: a kernel wants a tensor, got %.200s",
                 Py_TYPE(value)->tp_name);
    return false;
  }
  if (plan->data_ptr) {
    try {
      *out = plan->data_ptr(value);
      return *out || allow_null(value);
    } catch (...) {
      PyErr_Clear();  // the public method fails as well, with a message
    }
  }
  PyObject* number = PyObject_CallMethod(value, "data_ptr", nullptr);
  if (!number) return false;
  *out = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  if (*out) return true;
  return !PyErr_Occurred() && allow_null(value);
}

bool raise_number(Number found) {
  if (found == Number::kBeyondRange)
    PyErr_SetString(PyExc_OverflowError, "gyrator: a size expression leaves the 64-bit range");
  else
    PyErr_SetString(PyExc_ZeroDivisionError, "gyrator: a size expression divides by zero");
  return false;
}

PyObject* int_tuple(const int64_t* slots, int64_t n, const int64_t* ints) {
  PyObject* tuple = PyTuple_New(n);
  for (int64_t i = 0; tuple && i < n; i++) {
    PyObject* number = PyLong_FromLongLong(ints[slots[i]]);
    if (!number) Py_CLEAR(tuple);
    else PyTuple_SET_ITEM(tuple, i, number);
  }
  return tuple;
}

// Returns a new reference to the value of an argument, and advances *pc past it.
PyObject* argument(Plan* plan, const int64_t** pc, PyObject** registers, const int64_t* ints) {
  const int64_t kind = (*pc)[0], index = (*pc)[1];
  *pc += 2;
  PyObject* value = nullptr;
  switch (kind) {
    case ARG_REG:
      value = registers[index];
      if (!value) PyErr_SetString(PyExc_RuntimeError, "gyrator: an argument is an empty register");
      break;
    case ARG_CONST:
      value = PyTuple_GET_ITEM(plan->constants, index);
      break;
    case ARG_INT:
      return PyLong_FromLongLong(ints[index]);
    default: {
      value = int_tuple(*pc, index, ints);
      *pc += index;
      return value;
    }
  }
  Py_XINCREF(value);
  return value;
}

void raise_check(Plan* plan, const int64_t* launch, int64_t status, PyObject** registers,
                 const int64_t* sizes) {
  const int64_t step = launch[1], n_buffers = launch[2], n_sizes = launch[3];
  PyObject* handler = PyTuple_GET_ITEM(plan->checks, step);
  PyObject* buffers = PyTuple_New(n_buffers);
  PyObject* numbers = PyTuple_New(n_sizes);
  PyObject* error = nullptr;
  if (buffers && numbers) {
    for (int64_t i = 0; i < n_buffers; i++) {
      PyObject* value = registers[launch[kLaunchHeader + 2 * i]];
      PyTuple_SET_ITEM(buffers, i, Py_NewRef(value ? value : Py_None));
    }
    bool made = true;
    for (int64_t i = 0; i < n_sizes; i++) {
      PyObject* number = PyLong_FromLongLong(sizes[i]);
      if (!number) {
        made = false;
        break;
      }
      PyTuple_SET_ITEM(numbers, i, number);
    }
    if (made) error = PyObject_CallFunction(handler, "LOO", (long long)status, buffers, numbers);
  }
  Py_XDECREF(buffers);
  Py_XDECREF(numbers);
  if (!error) return;
  if (PyExceptionInstance_Check(error))
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
  else
    PyErr_Format(PyExc_RuntimeError, "gyrator: check %lld of a kernel failed", (long long)status);
  Py_DECREF(error);
}

PyObject* call_tuple(PyObject* function, PyObject* args) {
  if (PyCFunction_CheckExact(function) &&
      (PyCFunction_GET_FLAGS(function) & ~(METH_STATIC | METH_CLASS)) == METH_VARARGS)
    return PyCFunction_GET_FUNCTION(function)(PyCFunction_GET_SELF(function), args);
  return PyObject_Call(function, args, nullptr);
}

const int64_t* call(Plan* plan, const int64_t* pc, Registers& registers, const int64_t* ints) {
  const int64_t destination = pc[0], kwnames = pc[2], n = pc[3];
  PyObject* function = PyTuple_GET_ITEM(plan->constants, pc[1]);
  PyObject* names = kwnames >= 0 ? PyTuple_GET_ITEM(plan->constants, kwnames) : nullptr;
  pc += 4;
  Scratch<PyObject*> args(n + 1);
  if (!args.data) return nullptr;
  int64_t made = 0;
  PyObject* result = nullptr;
  args.data[0] = nullptr;
  for (; made < n; made++) {
    PyObject* value = argument(plan, &pc, registers.slots.data, ints);
    if (!value) break;
    args.data[made + 1] = value;
  }
  if (made == n) {
    const int64_t positional = n - (names ? PyTuple_GET_SIZE(names) : 0);
    const size_t count = positional | PY_VECTORCALL_ARGUMENTS_OFFSET;
    result = PyObject_Vectorcall(function, args.data + 1, count, names);
  }
  for (int64_t i = 0; i < made; i++) Py_DECREF(args.data[i + 1]);
  if (!result) return nullptr;
  if (destination >= 0) registers.set(destination, result);
  else Py_DECREF(result);
  return pc;
}

// Tensors created for one call of an operator.
struct Made {
  const Shim* shim;
  Tensor items[kMaxTensors];
  int64_t n = 0;
  explicit Made(const Shim* shim_) : shim(shim_) {}
  ~Made() {
    while (n > 0) shim->destroy(items[--n]);
  }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
};

// Returns the tensor at `at` in the memory of `base`, or null.
Tensor laid_out(Made* made, Tensor base, const int64_t* at, const int64_t* ints) {
  const int64_t ndim = at[1];
  const int32_t dtype = int32_t(at[2]);
  int64_t sizes[kMaxRank], strides[kMaxRank];
  for (int64_t k = 0; k < ndim; k++) {
    sizes[k] = ints[at[5 + k]];
    strides[k] = ints[at[5 + ndim + k]];
  }
  const Shim* shim = made->shim;
  const int64_t offset = ints[at[4]];
  Tensor* out = made->items + made->n;
  int32_t found = 0, type = 0, index = 0;
  void* data = nullptr;
  if (shim->dtype(base, &found)) return nullptr;
  if (found == dtype) {
    if (shim->reinterpret(base, ndim, sizes, strides, offset / at[3], out)) return nullptr;
  } else if (shim->data_ptr(base, &data) || shim->device_type(base, &type) ||
             shim->device_index(base, &index) ||
             shim->from_blob(static_cast<char*>(data) + offset, ndim, sizes, strides, 0, dtype,
                             type, index, out)) {
    return nullptr;
  }
  made->n++;
  return *out;
}

// Returns the word after the operands of an OP_OPERATE.
const int64_t* after_operate(const int64_t* pc) {
  const int64_t* at = pc + 4;
  for (int64_t i = 0; i < pc[2]; i++) at += at[1] < 0 ? 2 : 5 + 2 * at[1];
  return at + pc[3];
}

// Runs the operator without Python; returns false if that fails. Python may then run it again, since
// it does not read its output.
bool operate_directly(Plan* plan, const int64_t* pc, PyObject** registers, const int64_t* ints) {
  const int64_t n = pc[2], n_numbers = pc[3];
  const int64_t* at = pc + 4;
  Made made(&plan->shim);
  Tensor tensors[kMaxTensors];
  for (int64_t i = 0; i < n; i++) {
    PyObject* value = registers[at[0]];
    if (!value) return false;
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
    if (type != plan->tensor_type && type != plan->parameter_type) return false;
    tensors[i] = reinterpret_cast<char*>(value) + plan->tensor_offset;
    if (at[1] < 0) {
      at += 2;
      continue;
    }
    tensors[i] = laid_out(&made, tensors[i], at, ints);
    if (!tensors[i]) return false;
    at += 5 + 2 * at[1];
  }
  double numbers[2] = {0, 0};
  memcpy(numbers, at, sizeof(double) * n_numbers);
  const bool grad = plan->shim.grad_enabled();
  if (grad) plan->shim.set_grad(false);
  PyThreadState* saved = PyEval_SaveThread();
  const Tensor* t = tensors;
  int32_t failed;
  if (n == 3) {
    failed = reinterpret_cast<int32_t (*)(Tensor, Tensor, Tensor)>(pc[0])(t[0], t[1], t[2]);
  } else {
    using Scaled = int32_t (*)(Tensor, Tensor, Tensor, Tensor, double, double);
    failed = reinterpret_cast<Scaled>(pc[0])(t[0], t[1], t[2], t[3], numbers[0], numbers[1]);
  }
  PyEval_RestoreThread(saved);
  if (grad) plan->shim.set_grad(true);
  return !failed;
}

bool operate_in_python(Plan* plan, const int64_t* pc, PyObject** registers, const int64_t* ints) {
  const int64_t n = pc[2];
  const int64_t* at = pc + 4;
  int64_t slots[kInline];
  int64_t n_ints = 0;
  PyObject* objects = PyTuple_New(n);
  for (int64_t i = 0; objects && i < n; i++) {
    PyObject* value = registers[at[0]];
    if (!value) {
      PyErr_SetString(PyExc_RuntimeError, "gyrator: an operator reads an empty register");
      Py_CLEAR(objects);
      break;
    }
    PyTuple_SET_ITEM(objects, i, Py_NewRef(value));
    const int64_t words = at[1] < 0 ? 0 : 1 + 2 * at[1];
    for (int64_t k = 0; k < words; k++) slots[n_ints++] = at[4 + k];
    at += at[1] < 0 ? 2 : 5 + 2 * at[1];
  }
  PyObject* numbers = objects ? int_tuple(slots, n_ints, ints) : nullptr;
  PyObject* result = nullptr;
  if (numbers)
    result = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(plan->constants, pc[1]), objects, numbers,
                                          nullptr);
  Py_XDECREF(objects);
  Py_XDECREF(numbers);
  Py_XDECREF(result);
  return result;
}

// `quiet` is 1 if operators are not observed in this run, 0 if they are, -1 before the check.
const int64_t* operate(Plan* plan, const int64_t* pc, PyObject** registers, const int64_t* ints,
                       int* quiet) {
  if (pc[0] && plan->tensor_offset) {
    if (*quiet < 0) {
      const int found = watched(plan->watchers);
      if (found < 0) return nullptr;
      *quiet = !found;
    }
    if (*quiet && operate_directly(plan, pc, registers, ints)) return after_operate(pc);
  }
  return operate_in_python(plan, pc, registers, ints) ? after_operate(pc) : nullptr;
}

// Returns the at::Tensor of an object, or null if accessing its fields is not safe.
char* plain_tensor(Plan* plan, PyObject* value) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  const bool known = type == plan->tensor_type || type == plan->parameter_type;
  return known && plan->tensor_offset ? reinterpret_cast<char*>(value) + plan->tensor_offset
                                      : nullptr;
}

template <typename T>
T inside(const char* tensor, int64_t offset) {
  T found;
  memcpy(&found, *reinterpret_cast<char* const*>(tensor) + offset, sizeof found);
  return found;
}

// Returns whether a tensor definitely matches an OP_CONFORM.
bool conforms(Plan* plan, const int64_t* pc, PyObject* value, const int64_t* ints) {
  const int64_t ndim = pc[5];
  char* tensor = plain_tensor(plan, value);
  if (!tensor || !plan->key_offset || pc[2] < 0 || pc[3] < 0) return false;
  if (inside<uint64_t>(tensor, plan->key_offset) & plan->pending) return false;
  const Shim* shim = &plan->shim;
  int32_t dtype = 0, type = 0, index = 0;
  int64_t dim = 0;
  int64_t *sizes = nullptr, *strides = nullptr;
  if (shim->dtype(tensor, &dtype) || dtype != pc[2]) return false;
  if (shim->device_type(tensor, &type) || type != pc[3]) return false;
  if (pc[4] >= 0 && (shim->device_index(tensor, &index) || index != pc[4])) return false;
  if (shim->dim(tensor, &dim) || dim != ndim) return false;
  if (shim->sizes(tensor, &sizes) || shim->strides(tensor, &strides)) return false;
  const int64_t* layout = pc + 6;
  bool empty = false, same = true;
  for (int64_t k = 0; k < ndim; k++) {
    if (sizes[k] != ints[layout[k]]) return false;
    empty |= sizes[k] == 0;
    same &= sizes[k] < 2 || strides[k] == ints[layout[ndim + k]];
  }
  return same || empty;
}

const int64_t* conform(Plan* plan, const int64_t* pc, Registers& registers, const int64_t* ints) {
  const int64_t ndim = pc[5];
  PyObject* value = registers.slots.data[pc[0]];
  if (!value) {
    PyErr_SetString(PyExc_RuntimeError, "gyrator: an argument is an empty register");
    return nullptr;
  }
  if (!conforms(plan, pc, value, ints)) {
    PyObject* layout = int_tuple(pc + 6, 2 * ndim, ints);
    if (!layout) return nullptr;
    PyObject* made = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(plan->constants, pc[1]), value,
                                                  layout, nullptr);
    Py_DECREF(layout);
    if (!made) return nullptr;
    registers.set(pc[0], made);
  }
  return pc + 6 + 2 * ndim;
}

// Returns whether the tensors in the first n registers definitely have distinct storages that none of
// the following m tensors shares.
bool separated(Plan* plan, const int64_t* at, int64_t n, int64_t m, PyObject** registers) {
  Scratch<void*> seen(n + m);
  if (!seen.data || !plan->storage_offset) return false;
  for (int64_t k = n + m - 1; k >= 0; k--) {
    char* tensor = registers[at[k]] ? plain_tensor(plan, registers[at[k]]) : nullptr;
    if (!tensor) return false;
    seen.data[k] = inside<void*>(tensor, plan->storage_offset);
  }
  for (int64_t k = 0; k < n; k++)
    for (int64_t j = k + 1; j < n + m; j++)
      if (seen.data[k] == seen.data[j]) return false;
  return true;
}

PyObject* objects_of(const int64_t* at, int64_t n, PyObject** registers) {
  PyObject* found = PyTuple_New(n);
  for (int64_t k = 0; found && k < n; k++)
    PyTuple_SET_ITEM(found, k, Py_NewRef(registers[at[k]] ? registers[at[k]] : Py_None));
  return found;
}

const int64_t* separate(Plan* plan, const int64_t* pc, Registers& registers) {
  const int64_t n = pc[1], m = pc[2];
  const int64_t* at = pc + 3;
  PyObject** slots = registers.slots.data;
  if (!separated(plan, at, n, m, slots)) {
    if (PyErr_Occurred()) return nullptr;
    PyObject* own = objects_of(at, n, slots);
    PyObject* others = objects_of(at + n, m, slots);
    PyObject* made = nullptr;
    if (own && others)
      made = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(plan->constants, pc[0]), own, others,
                                          nullptr);
    Py_XDECREF(own);
    Py_XDECREF(others);
    if (!made) return nullptr;
    for (int64_t k = 0; k < n; k++) registers.set(at[k], Py_NewRef(PyTuple_GET_ITEM(made, k)));
    Py_DECREF(made);
  }
  return at + n + m;
}

bool bind(Plan* plan, PyObject* const* args, size_t n_given, Registers& registers) {
  Py_ssize_t n = PyVectorcall_NARGS(n_given);
  PyObject** slots = registers.slots.data;
  if (!plan->boxed) {
    if (n != plan->n_args) {
      PyErr_Format(PyExc_TypeError, "gyrator: a plan of %zd arguments got %zd", plan->n_args, n);
      return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) slots[i] = Py_NewRef(args[i]);
    return true;
  }
  if (n != 1 || !PyList_CheckExact(args[0]) || PyList_GET_SIZE(args[0]) != plan->n_args) {
    PyErr_Format(PyExc_TypeError, "gyrator: a boxed plan wants one list of %zd arguments",
                 plan->n_args);
    return false;
  }
  for (Py_ssize_t i = 0; i < plan->n_args; i++)
    slots[i] = Py_NewRef(PyList_GET_ITEM(args[0], i));
  return PyList_SetSlice(args[0], 0, plan->n_args, nullptr) == 0;
}

PyObject* returned(Plan* plan, const int64_t* pc, PyObject** registers, const int64_t* ints) {
  const int64_t n = *pc++;
  PyObject* result = PyTuple_New(n);
  for (int64_t i = 0; result && i < n; i++) {
    PyObject* value = argument(plan, &pc, registers, ints);
    if (!value) Py_CLEAR(result);
    else PyTuple_SET_ITEM(result, i, value);
  }
  return result;
}

// One call of a plan, over Python objects.
struct Run {
  template <class T>
  using Array = Scratch<T>;
  Plan* plan;
  Registers registers;
  PyObject* result = nullptr;
  PyThreadState* saved = nullptr;
  int quiet = -1;
  explicit Run(Plan* plan_) : plan(plan_), registers(plan_->n_registers) {}

  PyObject* at(int64_t reg, const char* message) {
    PyObject* value = registers.slots.data[reg];
    if (!value) PyErr_SetString(PyExc_RuntimeError, message);
    return value;
  }
  bool keep(int64_t destination, PyObject* value) {
    if (!value) return false;
    if (destination >= 0) registers.set(destination, value);
    else Py_DECREF(value);
    return true;
  }
  bool load_int(int64_t reg, int64_t* out) {
    PyObject* value = at(reg, "gyrator: a size reads an empty register");
    if (!value) return false;
    *out = PyLong_AsLongLong(value);
    return *out != -1 || !PyErr_Occurred();
  }
  bool no_number(Number found) { return raise_number(found); }

  bool pointer(int64_t reg, void** out) { return pointer_of(plan, registers.slots.data[reg], out); }
  void begin(int64_t release) { saved = release ? PyEval_SaveThread() : nullptr; }
  void end() {
    if (saved) PyEval_RestoreThread(saved);
  }
  int64_t launch(const int64_t* at, void** buffers, int64_t* sizes) {
    if (!plan->timings) return launch_now(at, buffers, sizes);
    const int64_t begin = now();
    const int64_t status = launch_now(at, buffers, sizes);
    const int64_t elapsed = now() - begin;
    // Threads may race here when the GIL is released; losing a sample is acceptable.
    Timing* t = plan->timings + at[1];
    t->count++;
    t->total += elapsed;
    if (t->least == 0 || elapsed < t->least) t->least = elapsed;
    return status;
  }
  int64_t launch_now(const int64_t* at, void** buffers, int64_t* sizes) {
    const DeviceLaunch* device = reinterpret_cast<const DeviceLaunch*>(at[4]);
    if (device) return launch_device(*this, device, buffers, at[2], sizes, at[3], at[5]);
    return reinterpret_cast<Kernel>(at[0])(buffers, sizes);
  }
  void failed(const int64_t* at, int64_t status, const int64_t* sizes) {
    if (!PyErr_Occurred()) raise_check(plan, at, status, registers.slots.data, sizes);
  }

  bool call_tuple(int64_t destination, int64_t function, int64_t args) {
    return keep(destination, ::call_tuple(PyTuple_GET_ITEM(plan->constants, function),
                                  PyTuple_GET_ITEM(plan->constants, args)));
  }
  const int64_t* call(const int64_t* pc, const int64_t* ints) {
    return ::call(plan, pc, registers, ints);
  }
  const int64_t* operate(const int64_t* pc, const int64_t* ints) {
    return ::operate(plan, pc, registers.slots.data, ints, &quiet);
  }
  const int64_t* conform(const int64_t* pc, const int64_t* ints) {
    return ::conform(plan, pc, registers, ints);
  }
  const int64_t* separate(const int64_t* pc) { return ::separate(plan, pc, registers); }
  void drop(int64_t reg) { registers.set(reg, nullptr); }
  bool item(int64_t destination, int64_t reg, int64_t index) {
    PyObject* source = at(reg, "gyrator: an item of an empty register");
    PyObject* item = source ? PySequence_GetItem(source, index) : nullptr;
    if (item) registers.set(destination, item);
    return item;
  }
  void move(int64_t destination, int64_t reg) {
    PyObject* value = registers.slots.data[reg];
    Py_XINCREF(value);
    registers.set(destination, value);
  }
  bool give(const int64_t* pc, const int64_t* ints) {
    result = returned(plan, pc, registers.slots.data, ints);
    return result;
  }
  bool give_nothing() {
    result = Py_NewRef(Py_None);
    return true;
  }
};

PyObject* run(PyObject* self, PyObject* const* args, size_t n_given, PyObject* kwnames) {
  Plan* plan = reinterpret_cast<Plan*>(self);
  if (kwnames && PyTuple_GET_SIZE(kwnames)) {
    PyErr_SetString(PyExc_TypeError, "gyrator: a plan takes no keyword arguments");
    return nullptr;
  }
  Run one(plan);
  Scratch<int64_t> slots(plan->n_ints);
  if (!one.registers.slots.data || !slots.data) return nullptr;
  if (!bind(plan, args, n_given, one.registers)) return nullptr;
  after_fork();
  memcpy(slots.data, plan->ints, sizeof(int64_t) * plan->n_ints);
  return execute(one, plan->code, slots.data) ? one.result : nullptr;
}

int64_t* copy_words(const char* bytes, Py_ssize_t size) {
  int64_t* words = static_cast<int64_t*>(PyMem_Malloc(size ? size : 1));
  if (words) memcpy(words, bytes, size);
  else PyErr_NoMemory();
  return words;
}

PyObject* plan_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"code",      "ints",        "consts",   "checks", "n_args",
                                      "n_regs",    "boxed",       "timed",    "tensor_type",
                                      "parameter_type", "data_ptr_address", "watchers", "helpers",
                                      "tensor_offset", "key_offset", "storage_offset", "pending", nullptr};
  const char *code, *ints;
  Py_ssize_t n_code, n_ints, n_args, n_registers;
  PyObject *constants, *checks, *tensor_type, *parameter_type, *watchers, *helpers;
  int boxed, timed;
  long long offset, keys, storage;
  unsigned long long address, pending;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#y#O!O!nnppOOKO!O!LLLK", const_cast<char**>(names),
                                   &code, &n_code, &ints, &n_ints, &PyTuple_Type, &constants,
                                   &PyTuple_Type, &checks, &n_args, &n_registers, &boxed, &timed,
                                   &tensor_type, &parameter_type, &address, &PyTuple_Type,
                                   &watchers, &PyTuple_Type, &helpers, &offset, &keys, &storage,
                                   &pending))
    return nullptr;
  const bool shimmed = PyTuple_GET_SIZE(helpers) == kHelpers && offset > 0;
  if (!PyType_Check(tensor_type) || n_registers < n_args || n_args < 0) {
    PyErr_SetString(PyExc_ValueError, "gyrator: a plan is malformed");
    return nullptr;
  }
  Plan* plan = reinterpret_cast<Plan*>(type->tp_alloc(type, 0));
  if (!plan) return nullptr;
  plan->call = run;
  plan->constants = Py_NewRef(constants);
  plan->checks = Py_NewRef(checks);
  plan->tensor_type = Py_NewRef(tensor_type);
  plan->parameter_type = Py_NewRef(parameter_type);
  plan->watchers = Py_NewRef(watchers);
  plan->tensor_offset = shimmed ? offset : 0;
  plan->key_offset = keys;
  plan->storage_offset = storage;
  plan->pending = pending;
  read_helpers(helpers, &plan->shim);
  plan->data_ptr = reinterpret_cast<DataPtr>(address);
  plan->n_code = n_code / 8;
  plan->n_ints = n_ints / 8;
  plan->n_args = n_args;
  plan->n_registers = n_registers;
  plan->n_launches = PyTuple_GET_SIZE(checks);
  plan->boxed = boxed;
  plan->code = copy_words(code, n_code);
  plan->ints = copy_words(ints, n_ints);
  if (plan->code && plan->ints && timed) {
    plan->timings = static_cast<Timing*>(PyMem_Calloc(plan->n_launches + 1, sizeof(Timing)));
    if (!plan->timings) PyErr_NoMemory();
  }
  if (PyErr_Occurred()) Py_CLEAR(plan);
  return reinterpret_cast<PyObject*>(plan);
}

int plan_traverse(PyObject* self, visitproc visit, void* arg) {
  Plan* plan = reinterpret_cast<Plan*>(self);
  Py_VISIT(plan->constants);
  Py_VISIT(plan->checks);
  Py_VISIT(plan->tensor_type);
  Py_VISIT(plan->parameter_type);
  Py_VISIT(plan->watchers);
  return 0;
}

int plan_clear(PyObject* self) {
  Plan* plan = reinterpret_cast<Plan*>(self);
  Py_CLEAR(plan->constants);
  Py_CLEAR(plan->checks);
  Py_CLEAR(plan->tensor_type);
  Py_CLEAR(plan->parameter_type);
  Py_CLEAR(plan->watchers);
  return 0;
}

void plan_dealloc(PyObject* self) {
  Plan* plan = reinterpret_cast<Plan*>(self);
  PyObject_GC_UnTrack(self);
  plan_clear(self);
  PyMem_Free(plan->code);
  PyMem_Free(plan->ints);
  PyMem_Free(plan->timings);
  Py_TYPE(self)->tp_free(self);
}

PyObject* plan_timings(PyObject* self, PyObject*) {
  Plan* plan = reinterpret_cast<Plan*>(self);
  Py_ssize_t n = plan->timings ? plan->n_launches : 0;
  PyObject* list = PyList_New(n);
  for (Py_ssize_t i = 0; list && i < n; i++) {
    Timing* t = plan->timings + i;
    PyObject* row = Py_BuildValue("(LLL)", (long long)t->count, (long long)t->total,
                                  (long long)t->least);
    if (!row) Py_CLEAR(list);
    else PyList_SET_ITEM(list, i, row);
  }
  return list;
}

PyMethodDef plan_methods[] = {
    {"timings", plan_timings, METH_NOARGS,
     "Rows (calls, total ns, least ns), one a launch; empty unless the plan is timed."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef plan_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Plan, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot plan_slots[] = {{Py_tp_new, (void*)plan_new},
                            {Py_tp_dealloc, (void*)plan_dealloc},
                            {Py_tp_traverse, (void*)plan_traverse},
                            {Py_tp_clear, (void*)plan_clear},
                            {Py_tp_call, (void*)PyVectorcall_Call},
                            {Py_tp_methods, plan_methods},
                            {Py_tp_members, plan_members},
                            {0, nullptr}};

PyType_Spec plan_spec = {"_gyrunner.Plan", sizeof(Plan), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                         plan_slots};

int module_exec(PyObject* module) {
  if (watch_forks()) return -1;
  const struct {
    const char* name;
    PyType_Spec* spec;
  } types[] = {
      {"Plan", &plan_spec}, {"Operator", &operator_spec}, {"Unchanged", &unchanged_spec}};
  for (const auto& [name, spec] : types) {
    PyObject* type = PyType_FromSpec(spec);
    if (!type) return -1;
    const int failed = PyModule_AddObjectRef(module, name, type);
    Py_DECREF(type);
    if (failed) return failed;
  }
  return 0;
}

PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void*)module_exec}, {0, nullptr}};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "_gyrunner",
                          "Runs plans of host instructions.", 0, nullptr,
                          module_slots,           nullptr,      nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__gyrunner() { return PyModuleDef_Init(&module_def); }
