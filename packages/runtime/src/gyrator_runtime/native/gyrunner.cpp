// The native runner: executes a whole list of host instructions in one call from Python.
//
// A plan is a flat array of 64-bit words (see encode.py, which is the only writer), a tuple of
// constants, and a template of integer slots. Registers and integer slots live on the C stack of
// the call, so that one plan may run in many threads and recursively. It includes Python.h only:
// torch is reached through function pointers: one that it exports for the address of a tensor's
// data, and those of its C ABI (shim.py).

#include <time.h>

namespace {

// Word values are shared with encode.py; test_encode.py holds the two lists together.
enum Op : int64_t {
  OP_END = 0,
  OP_LOAD_INT = 1,  // slot, reg
  OP_EVAL = 2,      // slot, n, (code, operand) * n
  OP_LAUNCH = 3,    // release, n, pointers, sizes, then n launches
  OP_CALL_TUPLE = 4,  // dst, const fn, const args
  OP_CALL = 5,        // dst, const fn, const kwnames or -1, n, args
  OP_DROP = 6,        // reg
  OP_GET_ITEM = 7,    // dst, reg, index
  OP_RETURN = 8,      // n, args
  OP_MOVE = 9,        // dst, reg
  // function, const fn, n tensors, n numbers, then for each tensor: reg, ndim or -1, and unless
  // -1: dtype, element size, offset, sizes, strides; then the numbers
  OP_OPERATE = 10,
  OP_CONFORM = 11,   // reg, const fn, dtype, device type, index or -1, ndim, sizes, strides
  OP_SEPARATE = 12,  // const fn, n, m, n regs, m regs
};

enum ArgKind : int64_t { ARG_REG = 0, ARG_CONST = 1, ARG_INT = 2, ARG_INT_TUPLE = 3 };

enum ExprOp : int64_t {
  EXPR_ARG = 0,
  EXPR_CONST = 1,
  EXPR_ADD = 2,
  EXPR_SUB = 3,
  EXPR_MUL = 4,
  EXPR_FLOORDIV = 5,
  EXPR_MOD = 6,
  EXPR_MIN = 7,
  EXPR_MAX = 8,
  EXPR_EQ = 9,
  EXPR_NE = 10,
  EXPR_LT = 11,
  EXPR_LE = 12,
  EXPR_UNLESS = 13,  // takes a number; where it is 0, so many operations are left out
  EXPR_SKIP = 14,    // leaves so many operations out
};

constexpr int kExprDepth = 64;     // encode.py refuses deeper programs
constexpr int64_t kTensors = 4;      // most tensors of an OP_OPERATE that runs without Python
constexpr int64_t kDims = 8;         // most dimensions of a tensor that is made for one

using Kernel = int64_t (*)(void* const*, const int64_t*);
using DataPtr = void* (*)(PyObject*);

struct Timing {
  int64_t count, total, least;
};

using Tensor = void*;  // an at::Tensor *; AtenTensorHandle in shim.h

// Functions of libtorch's C ABI, in the order of HELPERS in shim.py. They return 0 for success.
struct Shim {
  int32_t (*reinterpret)(Tensor, int64_t, const int64_t*, const int64_t*, int64_t, Tensor*);
  int32_t (*from_blob)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t,
                       int32_t, Tensor*);
  int32_t (*destroy)(Tensor);
  int32_t (*data_ptr)(Tensor, void**);
  int32_t (*dtype)(Tensor, int32_t*);
  int32_t (*device_type)(Tensor, int32_t*);
  int32_t (*device_index)(Tensor, int32_t*);
  bool (*grad_enabled)();
  void (*set_grad)(bool);
  int32_t (*dim)(Tensor, int64_t*);
  int32_t (*sizes)(Tensor, int64_t**);
  int32_t (*strides)(Tensor, int64_t**);
};
constexpr Py_ssize_t kHelpers = sizeof(Shim) / sizeof(void*);

// How a kernel gets onto a device's queue; triton/launch.py writes it. Sizes are passed by address,
// as the driver wants them: the low bytes of a 64-bit size are the 32-bit one.
using DriverLaunch = int32_t (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, void*, void**, void**);
struct DeviceLaunch {
  DriverLaunch launch;
  int32_t (*stream)(int32_t device, void** stream);
  int64_t (*prepare)(int64_t what);  // calls Python, with the interpreter's lock
  void* functions[2];  // for arguments that `divisors` divide, and for all others; null until built
  int64_t shared[2];
  int64_t threads;
  const int64_t* divisors;  // of buffers' addresses, then of sizes
  int64_t dimensions;
  const int64_t* grid[3];
  int64_t grid_length[3];
};
constexpr int64_t kEnterContext = 2;
constexpr int32_t kInvalidContext = 201;
constexpr int kMoreParameters = 4;  // null pointers: scratch memory that Triton's kernels take

struct Plan {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* consts;  // tuple
  PyObject* checks;  // tuple, one handler a launch: callable(number, buffers, sizes) -> exception
  PyObject* tensor_type;
  PyObject* parameter_type;
  PyObject* watchers;  // tuple of callables; one that gives true wants to see every operator
  DataPtr data_ptr;
  Shim shim;
  int64_t tensor_offset;  // of the at::Tensor in a tensor object; 0: no shim
  int64_t key_offset;      // of the dispatch keys in what an at::Tensor points to; 0: not known
  int64_t storage_offset;  // of the pointer to its storage there; 0: not known
  uint64_t pending;        // keys of a tensor whose conjugation or negation is still to be done
  int64_t* code;
  int64_t* ints;
  Timing* timings;  // null unless the plan is timed
  Py_ssize_t n_code, n_ints, n_args, n_regs, n_launches;
  int boxed;
};

// Registers own what they hold; leaving the scope, also on an error, releases all.
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

// Only an empty tensor may have no memory: fake and meta tensors claim elements that are not there.
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

// False with an exception set on failure. None is the null pointer.
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
      PyErr_Clear();  // the public method fails likewise and says why
    }
  }
  PyObject* number = PyObject_CallMethod(value, "data_ptr", nullptr);
  if (!number) return false;
  *out = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  if (*out) return true;
  return !PyErr_Occurred() && allow_null(value);
}

bool overflow() {
  PyErr_SetString(PyExc_OverflowError, "gyrator: a size expression leaves the 64-bit range");
  return false;
}

bool apply(int64_t code, int64_t a, int64_t b, int64_t* out) {
  switch (code) {
    case EXPR_ADD:
      return __builtin_add_overflow(a, b, out) ? overflow() : true;
    case EXPR_SUB:
      return __builtin_sub_overflow(a, b, out) ? overflow() : true;
    case EXPR_MUL:
      return __builtin_mul_overflow(a, b, out) ? overflow() : true;
    case EXPR_MIN:
      *out = a < b ? a : b;
      return true;
    case EXPR_MAX:
      *out = a > b ? a : b;
      return true;
    case EXPR_EQ:
      *out = a == b;
      return true;
    case EXPR_NE:
      *out = a != b;
      return true;
    case EXPR_LT:
      *out = a < b;
      return true;
    case EXPR_LE:
      *out = a <= b;
      return true;
    default:
      break;
  }
  if (b == 0) {
    PyErr_SetString(PyExc_ZeroDivisionError, "gyrator: a size expression divides by zero");
    return false;
  }
  if (b == -1) {
    if (code == EXPR_MOD) {
      *out = 0;
      return true;
    }
    return __builtin_sub_overflow(int64_t(0), a, out) ? overflow() : true;
  }
  int64_t quotient = a / b, rest = a % b;
  bool below = rest != 0 && ((rest < 0) != (b < 0));
  *out = code == EXPR_FLOORDIV ? quotient - below : rest + (below ? b : 0);
  return true;
}

bool evaluate(const int64_t* pc, int64_t n, const int64_t* ints, int64_t* out) {
  int64_t stack[kExprDepth];
  int top = 0;
  for (const int64_t* end = pc + 2 * n; pc < end; pc += 2) {
    if (pc[0] == EXPR_ARG) {
      stack[top++] = ints[pc[1]];
    } else if (pc[0] == EXPR_CONST) {
      stack[top++] = pc[1];
    } else if (pc[0] == EXPR_SKIP || pc[0] == EXPR_UNLESS) {
      if (pc[0] == EXPR_SKIP || !stack[--top]) pc += 2 * pc[1];
    } else {
      top--;
      if (!apply(pc[0], stack[top - 1], stack[top], &stack[top - 1])) return false;
    }
  }
  *out = stack[0];
  return true;
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

// A new reference to the value of one argument; *pc moves past it.
PyObject* argument(Plan* plan, const int64_t** pc, PyObject** regs, const int64_t* ints) {
  const int64_t kind = (*pc)[0], index = (*pc)[1];
  *pc += 2;
  PyObject* value = nullptr;
  switch (kind) {
    case ARG_REG:
      value = regs[index];
      if (!value) PyErr_SetString(PyExc_RuntimeError, "gyrator: an argument is an empty register");
      break;
    case ARG_CONST:
      value = PyTuple_GET_ITEM(plan->consts, index);
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

void raise_check(Plan* plan, const int64_t* launch, int64_t status, PyObject** regs,
                 const int64_t* sizes) {
  const int64_t step = launch[1], n_buffers = launch[2], n_sizes = launch[3];
  PyObject* handler = PyTuple_GET_ITEM(plan->checks, step);
  PyObject* buffers = PyTuple_New(n_buffers);
  PyObject* numbers = PyTuple_New(n_sizes);
  PyObject* error = nullptr;
  if (buffers && numbers) {
    for (int64_t i = 0; i < n_buffers; i++) {
      PyObject* value = regs[launch[5 + 2 * i]];
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

// Queues a kernel on the current stream: 0, the driver's error, or -1 with an exception set or kept
// by `prepare`.
int64_t launch_device(const DeviceLaunch* d, void** buffers, int64_t n_buffers, int64_t* sizes,
                      int64_t n_sizes) {
  int64_t grid[3] = {1, 1, 1};
  for (int64_t k = 0; k < d->dimensions; k++) {
    if (!evaluate(d->grid[k], d->grid_length[k], sizes, &grid[k])) return -1;
    if (grid[k] <= 0) return 0;
  }
  Scratch<void*> parameters(n_buffers + n_sizes + kMoreParameters);
  if (!parameters.data) return -1;
  void* none = nullptr;
  void** p = parameters.data;
  const int64_t* divisor = d->divisors;
  bool divided = true;
  for (int64_t k = 0; k < n_buffers; k++, divisor++) {
    divided &= reinterpret_cast<uintptr_t>(buffers[k]) % uintptr_t(*divisor) == 0;
    *p++ = &buffers[k];
  }
  for (int64_t k = 0; k < n_sizes; k++, divisor++) {
    divided &= sizes[k] % *divisor == 0;
    *p++ = &sizes[k];
  }
  for (int k = 0; k < kMoreParameters; k++) *p++ = &none;
  const int which = !divided;
  if (!d->functions[which]) {
    const int64_t status = d->prepare(which);
    if (status) return status;
  }
  void* stream = nullptr;
  d->stream(-1, &stream);
  for (bool again = false;; again = true) {
    const int32_t status = d->launch(d->functions[which], unsigned(grid[0]), unsigned(grid[1]),
                                     unsigned(grid[2]), unsigned(d->threads), 1, 1,
                                     unsigned(d->shared[which]), stream, parameters.data, nullptr);
    if (status != kInvalidContext || again) return status;
    if (const int64_t failed = d->prepare(kEnterContext)) return failed;
  }
}

// Runs one group of launches; returns the word after it, or null with an exception set.
const int64_t* launch_group(Plan* plan, const int64_t* pc, PyObject** regs, const int64_t* ints) {
  const int64_t release = pc[0], n = pc[1];
  Scratch<void*> pointers(pc[2]);
  Scratch<int64_t> sizes(pc[3]);
  if (!pointers.data || !sizes.data) return nullptr;
  const int64_t* first = pc + 4;
  const int64_t* at = first;
  void** p = pointers.data;
  int64_t* s = sizes.data;
  for (int64_t i = 0; i < n; i++) {
    const int64_t n_buffers = at[2], n_sizes = at[3];
    at += 5;
    for (int64_t k = 0; k < n_buffers; k++, at += 2) {
      if (!pointer_of(plan, regs[at[0]], p)) return nullptr;
      if (at[1] >= 0 && *p) *p = static_cast<char*>(*p) + ints[at[1]];
      p++;
    }
    for (int64_t k = 0; k < n_sizes; k++) *s++ = ints[*at++];
  }
  const int64_t* end = at;
  p = pointers.data;
  s = sizes.data;
  at = first;
  int64_t status = 0;
  PyThreadState* saved = release ? PyEval_SaveThread() : nullptr;
  for (int64_t i = 0; i < n; i++) {
    const int64_t n_buffers = at[2], n_sizes = at[3];
    Kernel kernel = reinterpret_cast<Kernel>(at[0]);
    const DeviceLaunch* device = reinterpret_cast<const DeviceLaunch*>(at[4]);
    if (plan->timings) {
      const int64_t begin = now();
      status = device ? launch_device(device, p, n_buffers, s, n_sizes) : kernel(p, s);
      const int64_t spent = now() - begin;
      // Threads may race here when the lock is released; a lost sample is no error.
      Timing* t = plan->timings + at[1];
      t->count++;
      t->total += spent;
      if (t->least == 0 || spent < t->least) t->least = spent;
    } else if (device) {
      status = launch_device(device, p, n_buffers, s, n_sizes);
    } else {
      status = kernel(p, s);
    }
    if (status) break;
    p += n_buffers;
    s += n_sizes;
    at += 5 + 2 * n_buffers + n_sizes;
  }
  if (saved) PyEval_RestoreThread(saved);
  if (status) {
    if (PyErr_Occurred()) return nullptr;
    raise_check(plan, at, status, regs, s);
    return nullptr;
  }
  return end;
}

PyObject* call_tuple(PyObject* fn, PyObject* args) {
  if (PyCFunction_CheckExact(fn) &&
      (PyCFunction_GET_FLAGS(fn) & ~(METH_STATIC | METH_CLASS)) == METH_VARARGS)
    return PyCFunction_GET_FUNCTION(fn)(PyCFunction_GET_SELF(fn), args);
  return PyObject_Call(fn, args, nullptr);
}

const int64_t* call(Plan* plan, const int64_t* pc, Registers& regs, const int64_t* ints) {
  const int64_t dst = pc[0], kwnames = pc[2], n = pc[3];
  PyObject* fn = PyTuple_GET_ITEM(plan->consts, pc[1]);
  PyObject* names = kwnames >= 0 ? PyTuple_GET_ITEM(plan->consts, kwnames) : nullptr;
  pc += 4;
  Scratch<PyObject*> args(n + 1);
  if (!args.data) return nullptr;
  int64_t made = 0;
  PyObject* result = nullptr;
  args.data[0] = nullptr;
  for (; made < n; made++) {
    PyObject* value = argument(plan, &pc, regs.slots.data, ints);
    if (!value) break;
    args.data[made + 1] = value;
  }
  if (made == n) {
    const int64_t positional = n - (names ? PyTuple_GET_SIZE(names) : 0);
    result = PyObject_Vectorcall(fn, args.data + 1, positional | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                 names);
  }
  for (int64_t i = 0; i < made; i++) Py_DECREF(args.data[i + 1]);
  if (!result) return nullptr;
  if (dst >= 0) regs.set(dst, result);
  else Py_DECREF(result);
  return pc;
}

// Tensors made for one call of an operator.
struct Made {
  const Shim* shim;
  Tensor items[kTensors];
  int64_t n = 0;
  explicit Made(const Shim* shim_) : shim(shim_) {}
  ~Made() {
    while (n > 0) shim->destroy(items[--n]);
  }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
};

// The tensor at `at` in the memory of `base`, or null.
Tensor laid_out(Made* made, Tensor base, const int64_t* at, const int64_t* ints) {
  const int64_t ndim = at[1];
  const int32_t dtype = int32_t(at[2]);
  int64_t sizes[kDims], strides[kDims];
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

// 1 if somebody wants to see operators, 0 if nobody does, -1 with an exception set.
int watched(Plan* plan) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plan->watchers); i++) {
    PyObject* answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(plan->watchers, i));
    if (!answer) return -1;
    const int yes = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    if (yes) return yes;
  }
  return 0;
}

// The word after an OP_OPERATE's operands.
const int64_t* after_operate(const int64_t* pc) {
  const int64_t* at = pc + 4;
  for (int64_t i = 0; i < pc[2]; i++) at += at[1] < 0 ? 2 : 5 + 2 * at[1];
  return at + pc[3];
}

// Runs the operator without Python; false where that does not work. Python may then run it again,
// since it reads none of what it writes.
bool operate_directly(Plan* plan, const int64_t* pc, PyObject** regs, const int64_t* ints) {
  const int64_t n = pc[2], n_numbers = pc[3];
  const int64_t* at = pc + 4;
  Made made(&plan->shim);
  Tensor tensors[kTensors];
  for (int64_t i = 0; i < n; i++) {
    PyObject* value = regs[at[0]];
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

bool operate_in_python(Plan* plan, const int64_t* pc, PyObject** regs, const int64_t* ints) {
  const int64_t n = pc[2];
  const int64_t* at = pc + 4;
  int64_t slots[kInline];
  int64_t n_ints = 0;
  PyObject* objects = PyTuple_New(n);
  for (int64_t i = 0; objects && i < n; i++) {
    PyObject* value = regs[at[0]];
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
    result = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(plan->consts, pc[1]), objects, numbers,
                                          nullptr);
  Py_XDECREF(objects);
  Py_XDECREF(numbers);
  Py_XDECREF(result);
  return result;
}

// `quiet` is 1 once nobody was found to watch in this run, 0 if somebody does, -1 before.
const int64_t* operate(Plan* plan, const int64_t* pc, PyObject** regs, const int64_t* ints,
                       int* quiet) {
  if (pc[0] && plan->tensor_offset) {
    if (*quiet < 0) {
      const int found = watched(plan);
      if (found < 0) return nullptr;
      *quiet = !found;
    }
    if (*quiet && operate_directly(plan, pc, regs, ints)) return after_operate(pc);
  }
  return operate_in_python(plan, pc, regs, ints) ? after_operate(pc) : nullptr;
}

// The at::Tensor of an object, or null where looking inside of it is not safe.
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

// Whether a tensor surely is what an OP_CONFORM asks for.
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
  const int64_t* want = pc + 6;
  bool empty = false, same = true;
  for (int64_t k = 0; k < ndim; k++) {
    if (sizes[k] != ints[want[k]]) return false;
    empty |= sizes[k] == 0;
    same &= sizes[k] < 2 || strides[k] == ints[want[ndim + k]];
  }
  return same || empty;
}

const int64_t* conform(Plan* plan, const int64_t* pc, Registers& regs, const int64_t* ints) {
  const int64_t ndim = pc[5];
  PyObject* value = regs.slots.data[pc[0]];
  if (!value) {
    PyErr_SetString(PyExc_RuntimeError, "gyrator: an argument is an empty register");
    return nullptr;
  }
  if (!conforms(plan, pc, value, ints)) {
    PyObject* layout = int_tuple(pc + 6, 2 * ndim, ints);
    if (!layout) return nullptr;
    PyObject* made = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(plan->consts, pc[1]), value,
                                                  layout, nullptr);
    Py_DECREF(layout);
    if (!made) return nullptr;
    regs.set(pc[0], made);
  }
  return pc + 6 + 2 * ndim;
}

// Whether tensors surely have storage of their own each: the first n of the registers, which none of
// the m after them has either.
bool separated(Plan* plan, const int64_t* at, int64_t n, int64_t m, PyObject** regs) {
  Scratch<void*> seen(n + m);
  if (!seen.data || !plan->storage_offset) return false;
  for (int64_t k = n + m - 1; k >= 0; k--) {
    char* tensor = regs[at[k]] ? plain_tensor(plan, regs[at[k]]) : nullptr;
    if (!tensor) return false;
    seen.data[k] = inside<void*>(tensor, plan->storage_offset);
  }
  for (int64_t k = 0; k < n; k++)
    for (int64_t j = k + 1; j < n + m; j++)
      if (seen.data[k] == seen.data[j]) return false;
  return true;
}

PyObject* objects_of(const int64_t* at, int64_t n, PyObject** regs) {
  PyObject* found = PyTuple_New(n);
  for (int64_t k = 0; found && k < n; k++)
    PyTuple_SET_ITEM(found, k, Py_NewRef(regs[at[k]] ? regs[at[k]] : Py_None));
  return found;
}

const int64_t* separate(Plan* plan, const int64_t* pc, Registers& regs) {
  const int64_t n = pc[1], m = pc[2];
  const int64_t* at = pc + 3;
  PyObject** slots = regs.slots.data;
  if (!separated(plan, at, n, m, slots)) {
    if (PyErr_Occurred()) return nullptr;
    PyObject* mine = objects_of(at, n, slots);
    PyObject* others = objects_of(at + n, m, slots);
    PyObject* made = nullptr;
    if (mine && others)
      made = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(plan->consts, pc[0]), mine, others,
                                          nullptr);
    Py_XDECREF(mine);
    Py_XDECREF(others);
    if (!made) return nullptr;
    for (int64_t k = 0; k < n; k++) regs.set(at[k], Py_NewRef(PyTuple_GET_ITEM(made, k)));
    Py_DECREF(made);
  }
  return at + n + m;
}

bool bind(Plan* plan, PyObject* const* args, size_t n_given, Registers& regs) {
  Py_ssize_t n = PyVectorcall_NARGS(n_given);
  PyObject** slots = regs.slots.data;
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

PyObject* returned(Plan* plan, const int64_t* pc, PyObject** regs, const int64_t* ints) {
  const int64_t n = *pc++;
  PyObject* result = PyTuple_New(n);
  for (int64_t i = 0; result && i < n; i++) {
    PyObject* value = argument(plan, &pc, regs, ints);
    if (!value) Py_CLEAR(result);
    else PyTuple_SET_ITEM(result, i, value);
  }
  return result;
}

PyObject* run(PyObject* self, PyObject* const* args, size_t n_given, PyObject* kwnames) {
  Plan* plan = reinterpret_cast<Plan*>(self);
  if (kwnames && PyTuple_GET_SIZE(kwnames)) {
    PyErr_SetString(PyExc_TypeError, "gyrator: a plan takes no keyword arguments");
    return nullptr;
  }
  Registers regs(plan->n_regs);
  Scratch<int64_t> slots(plan->n_ints);
  if (!regs.slots.data || !slots.data || !bind(plan, args, n_given, regs)) return nullptr;
  if (__builtin_expect(forked, 0)) after_fork();
  int64_t* ints = slots.data;
  memcpy(ints, plan->ints, sizeof(int64_t) * plan->n_ints);
  const int64_t* pc = plan->code;
  int quiet = -1;
  for (;;) {
    switch (*pc++) {
      case OP_LOAD_INT: {
        PyObject* value = regs.slots.data[pc[1]];
        if (!value) {
          PyErr_SetString(PyExc_RuntimeError, "gyrator: a size reads an empty register");
          return nullptr;
        }
        ints[pc[0]] = PyLong_AsLongLong(value);
        if (ints[pc[0]] == -1 && PyErr_Occurred()) return nullptr;
        pc += 2;
        break;
      }
      case OP_EVAL:
        if (!evaluate(pc + 2, pc[1], ints, &ints[pc[0]])) return nullptr;
        pc += 2 + 2 * pc[1];
        break;
      case OP_LAUNCH:
        pc = launch_group(plan, pc, regs.slots.data, ints);
        if (!pc) return nullptr;
        break;
      case OP_CALL_TUPLE: {
        PyObject* result = call_tuple(PyTuple_GET_ITEM(plan->consts, pc[1]),
                                      PyTuple_GET_ITEM(plan->consts, pc[2]));
        if (!result) return nullptr;
        if (pc[0] >= 0) regs.set(pc[0], result);
        else Py_DECREF(result);
        pc += 3;
        break;
      }
      case OP_CALL:
        pc = call(plan, pc, regs, ints);
        if (!pc) return nullptr;
        break;
      case OP_OPERATE:
        pc = operate(plan, pc, regs.slots.data, ints, &quiet);
        if (!pc) return nullptr;
        break;
      case OP_CONFORM:
        pc = conform(plan, pc, regs, ints);
        if (!pc) return nullptr;
        break;
      case OP_SEPARATE:
        pc = separate(plan, pc, regs);
        if (!pc) return nullptr;
        break;
      case OP_DROP:
        regs.set(*pc++, nullptr);
        break;
      case OP_GET_ITEM: {
        PyObject* source = regs.slots.data[pc[1]];
        PyObject* item = source ? PySequence_GetItem(source, pc[2]) : nullptr;
        if (!item) {
          if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "gyrator: an item of an empty register");
          return nullptr;
        }
        regs.set(pc[0], item);
        pc += 3;
        break;
      }
      case OP_MOVE: {
        PyObject* value = regs.slots.data[pc[1]];
        Py_XINCREF(value);
        regs.set(pc[0], value);
        pc += 2;
        break;
      }
      case OP_RETURN:
        return returned(plan, pc, regs.slots.data, ints);
      default:
        Py_RETURN_NONE;
    }
  }
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
  Py_ssize_t n_code, n_ints, n_args, n_regs;
  PyObject *consts, *checks, *tensor_type, *parameter_type, *watchers, *helpers;
  int boxed, timed;
  long long offset, keys, storage;
  unsigned long long address, pending;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#y#O!O!nnppOOKO!O!LLLK", const_cast<char**>(names),
                                   &code, &n_code, &ints, &n_ints, &PyTuple_Type, &consts,
                                   &PyTuple_Type, &checks, &n_args, &n_regs, &boxed, &timed,
                                   &tensor_type, &parameter_type, &address, &PyTuple_Type,
                                   &watchers, &PyTuple_Type, &helpers, &offset, &keys, &storage,
                                   &pending))
    return nullptr;
  const bool shimmed = PyTuple_GET_SIZE(helpers) == kHelpers && offset > 0;
  if (!PyType_Check(tensor_type) || n_regs < n_args || n_args < 0) {
    PyErr_SetString(PyExc_ValueError, "gyrator: a plan is malformed");
    return nullptr;
  }
  Plan* plan = reinterpret_cast<Plan*>(type->tp_alloc(type, 0));
  if (!plan) return nullptr;
  plan->call = run;
  plan->consts = Py_NewRef(consts);
  plan->checks = Py_NewRef(checks);
  plan->tensor_type = Py_NewRef(tensor_type);
  plan->parameter_type = Py_NewRef(parameter_type);
  plan->watchers = Py_NewRef(watchers);
  plan->tensor_offset = shimmed ? offset : 0;
  plan->key_offset = keys;
  plan->storage_offset = storage;
  plan->pending = pending;
  void* functions[kHelpers] = {};
  for (Py_ssize_t i = 0; shimmed && i < kHelpers; i++)
    functions[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(helpers, i));
  memcpy(&plan->shim, functions, sizeof functions);
  plan->data_ptr = reinterpret_cast<DataPtr>(address);
  plan->n_code = n_code / 8;
  plan->n_ints = n_ints / 8;
  plan->n_args = n_args;
  plan->n_regs = n_regs;
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
  Py_VISIT(plan->consts);
  Py_VISIT(plan->checks);
  Py_VISIT(plan->tensor_type);
  Py_VISIT(plan->parameter_type);
  Py_VISIT(plan->watchers);
  return 0;
}

int plan_clear(PyObject* self) {
  Plan* plan = reinterpret_cast<Plan*>(self);
  Py_CLEAR(plan->consts);
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
  PyObject* type = PyType_FromSpec(&plan_spec);
  if (!type) return -1;
  int failed = PyModule_AddObjectRef(module, "Plan", type);
  Py_DECREF(type);
  return failed;
}

PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void*)module_exec}, {0, nullptr}};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "_gyrunner",
                          "Runs plans of host instructions.", 0, nullptr,
                          module_slots,           nullptr,      nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__gyrunner() { return PyModuleDef_Init(&module_def); }
