// Functions of libtorch's C ABI (shim.py), and a callable for operators that return a new tensor.
// Prepended, after plan.h, to gyrunner.cpp.

namespace {

using Tensor = void*;  // an at::Tensor *; AtenTensorHandle in shim.h

// In the order of HELPERS in shim.py. They return 0 for success.
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

void read_helpers(PyObject* helpers, Shim* shim) {
  void* functions[kHelpers] = {};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(helpers) && i < kHelpers; i++)
    functions[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(helpers, i));
  memcpy(shim, functions, sizeof functions);
}

// Returns 1 if operators are observed, 0 if not, -1 with an exception set.
int watched(PyObject* watchers) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(watchers); i++) {
    PyObject* answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(watchers, i));
    if (!answer) return -1;
    const int is_true = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    if (is_true) return is_true;
  }
  return 0;
}

struct Operator;
struct Arguments;

// A function of the ABI, by the operator's name.
struct Entry {
  const char* target;
  Py_ssize_t arity;
  int32_t (*call)(Arguments&, const Operator*, Tensor*);
};

// An operator with the arguments of its schema, all positional. Arguments that the ABI cannot take,
// observed operators and failures go to the function of PyTorch.
struct Operator {
  PyObject_HEAD
  vectorcallfunc call;
  const Entry* entry;
  void* address;
  PyObject* function;
  PyObject* wrap;  // from a list of capsules with Tensors, which it takes over, to Python tensors
  PyObject* tensor_type;
  PyObject* parameter_type;
  PyObject* watchers;
  Shim shim;
  int64_t tensor_offset;  // of the at::Tensor in a Python tensor object
  int32_t cpu;            // the ABI's code of the device type
};

constexpr Py_ssize_t kItems = 8;  // maximum length of a list among the arguments

template <class T>
struct Optional {
  T value{};
  bool present = false;
  T* pointer() { return present ? &value : nullptr; }
};

struct Integers {
  int64_t items[kItems];
  int64_t n = 0;
};

struct Doubles {
  double values[kItems];
  const double* items[kItems];  // null for None
  int64_t n = 0;
};

// The arguments of a call, read one after the other.
struct Arguments {
  const Operator* op;
  PyObject* const* next;
  bool accepted = true;  // the ABI takes all arguments so far

  Tensor tensor() {
    PyObject* value = *next++;
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
    int32_t device = -1;
    Tensor found = reinterpret_cast<char*>(value) + op->tensor_offset;
    accepted = accepted && (type == op->tensor_type || type == op->parameter_type) &&
          !op->shim.device_type(found, &device) && device == op->cpu;
    return found;
  }
  Optional<Tensor> optional_tensor() {
    if (absent()) return {};
    return {tensor(), true};
  }
  int64_t integer() {
    PyObject* value = *next++;
    accepted = accepted && PyLong_CheckExact(value);
    return accepted ? integer_of(value) : 0;
  }
  Integers integers() {
    Integers found;
    Py_ssize_t n = 0;
    PyObject** items = list(&n);
    for (Py_ssize_t i = 0; accepted && i < n; i++) {
      accepted = PyLong_CheckExact(items[i]);
      if (accepted) found.items[found.n++] = integer_of(items[i]);
    }
    return found;
  }
  // The pointers of the result are valid as long as it is not copied.
  void doubles(Doubles* found) {
    Py_ssize_t n = 0;
    PyObject** items = list(&n);
    for (Py_ssize_t i = 0; accepted && i < n; i++) {
      const bool none = items[i] == Py_None;
      accepted = none || PyFloat_CheckExact(items[i]);
      if (!accepted) return;
      if (!none) found->values[i] = PyFloat_AS_DOUBLE(items[i]);
      found->items[found->n++] = none ? nullptr : &found->values[i];
    }
  }
  const char* text() {
    PyObject* value = *next++;
    accepted = accepted && PyUnicode_CheckExact(value);
    const char* found = accepted ? PyUnicode_AsUTF8(value) : nullptr;
    if (accepted && !found) {
      PyErr_Clear();
      accepted = false;
    }
    return found;
  }
  Optional<const char*> optional_text() {
    if (absent()) return {};
    return {text(), true};
  }
  void none() { accepted = absent() && accepted; }

 private:
  bool absent() {
    if (*next != Py_None) return false;
    next++;
    return true;
  }
  int64_t integer_of(PyObject* value) {
    int overflow = 0;
    const long long found = PyLong_AsLongLongAndOverflow(value, &overflow);
    accepted = accepted && !overflow;
    return found;
  }
  PyObject** list(Py_ssize_t* n) {
    PyObject* value = *next++;
    accepted = accepted && (PyList_CheckExact(value) || PyTuple_CheckExact(value)) &&
          PySequence_Fast_GET_SIZE(value) <= kItems;
    if (!accepted) return nullptr;
    *n = PySequence_Fast_GET_SIZE(value);
    return PySequence_Fast_ITEMS(value);
  }
};

// Lets other Python threads run during a call of the ABI.
struct Released {
  PyThreadState* saved = PyEval_SaveThread();
  ~Released() { PyEval_RestoreThread(saved); }
};

// Calls the operator's function, whose parameters have the types of these arguments: they are
// declared in torch/csrc/inductor/aoti_torch/c/shim_cpu.h.
template <class... Types>
int32_t invoke(const Operator* op, Types... arguments) {
  const Released released;
  return reinterpret_cast<int32_t (*)(Types...)>(op->address)(arguments...);
}

int32_t convolution(Arguments& a, const Operator* op, Tensor* result) {
  Tensor x = a.tensor(), weight = a.tensor();
  Optional<Tensor> bias = a.optional_tensor();
  const Integers padding = a.integers(), stride = a.integers(), dilation = a.integers();
  const int64_t groups = a.integer();
  const char* after = a.text();
  Doubles scalars;
  a.doubles(&scalars);
  Optional<const char*> algorithm = a.optional_text();
  if (!a.accepted) return -1;
  return invoke(op, x, weight, bias.pointer(), padding.items, padding.n, stride.items, stride.n,
                dilation.items, dilation.n, groups, after, scalars.items, scalars.n,
                algorithm.pointer(), result);
}

int32_t transposed_convolution(Arguments& a, const Operator* op, Tensor* result) {
  Tensor x = a.tensor(), weight = a.tensor();
  Optional<Tensor> bias = a.optional_tensor();
  const Integers padding = a.integers(), more = a.integers(), stride = a.integers();
  const Integers dilation = a.integers();
  const int64_t groups = a.integer();
  const char* after = a.text();
  Doubles scalars;
  a.doubles(&scalars);
  Optional<const char*> algorithm = a.optional_text();
  if (!a.accepted) return -1;
  return invoke(op, x, weight, bias.pointer(), padding.items, padding.n, more.items, more.n,
                stride.items, stride.n, dilation.items, dilation.n, groups, after, scalars.items,
                scalars.n, algorithm.pointer(), result);
}

int32_t convolution_and_tensor(Arguments& a, const Operator* op, Tensor* result) {
  Tensor x = a.tensor(), other = a.tensor(), weight = a.tensor();
  Optional<Tensor> bias = a.optional_tensor();
  const Integers padding = a.integers(), stride = a.integers(), dilation = a.integers();
  const int64_t groups = a.integer();
  const char* operation = a.text();
  a.none();  // the factor of the other tensor
  Optional<const char*> after = a.optional_text();
  Doubles scalars;
  a.doubles(&scalars);
  Optional<const char*> algorithm = a.optional_text();
  if (!a.accepted) return -1;
  double* const factor = nullptr;
  return invoke(op, x, other, weight, bias.pointer(), padding.items, padding.n, stride.items,
                stride.n, dilation.items, dilation.n, groups, operation, factor, after.pointer(),
                scalars.items, scalars.n, algorithm.pointer(), result);
}

int32_t linear(Arguments& a, const Operator* op, Tensor* result) {
  Tensor x = a.tensor(), weight = a.tensor();
  Optional<Tensor> bias = a.optional_tensor();
  const char* after = a.text();
  Doubles scalars;
  a.doubles(&scalars);
  Optional<const char*> algorithm = a.optional_text();
  if (!a.accepted) return -1;
  return invoke(op, x, weight, bias.pointer(), after, scalars.items, scalars.n,
                algorithm.pointer(), result);
}

int32_t mkl_linear(Arguments& a, const Operator* op, Tensor* result) {
  Tensor x = a.tensor(), packed = a.tensor(), weight = a.tensor();
  Optional<Tensor> bias = a.optional_tensor();
  const int64_t rows = a.integer();
  if (!a.accepted) return -1;
  return invoke(op, x, packed, weight, bias.pointer(), rows, result);
}

constexpr Entry kEntries[] = {
    {"mkldnn._convolution_pointwise.default", 10, convolution},
    {"mkldnn._convolution_pointwise.binary", 13, convolution_and_tensor},
    {"mkldnn._convolution_transpose_pointwise.default", 11, transposed_convolution},
    {"mkldnn._linear_pointwise.default", 6, linear},
    {"mkl._mkl_linear.default", 5, mkl_linear},
};

// Returns a new tensor, or null without an exception if PyTorch's function has to be called.
Tensor call_directly(const Operator* op, PyObject* const* args) {
  Arguments arguments{op, args};
  Tensor result = nullptr;
  const bool grad = op->shim.grad_enabled();
  if (grad) op->shim.set_grad(false);
  const int32_t failed = op->entry->call(arguments, op, &result);
  if (grad) op->shim.set_grad(true);
  return failed ? nullptr : result;
}

// Returns the Python tensor of a new Tensor, which it takes over.
PyObject* wrapped(const Operator* op, Tensor made) {
  PyObject* capsule = PyCapsule_New(made, nullptr, nullptr);
  PyObject* list = capsule ? PyList_New(1) : nullptr;
  if (!list) {
    Py_XDECREF(capsule);
    op->shim.destroy(made);
    return nullptr;
  }
  PyList_SET_ITEM(list, 0, capsule);
  PyObject* tensors = PyObject_CallOneArg(op->wrap, list);
  Py_DECREF(list);
  if (!tensors) return nullptr;
  PyObject* result = PySequence_GetItem(tensors, 0);
  Py_DECREF(tensors);
  return result;
}

PyObject* call_operator(PyObject* self, PyObject* const* args, size_t n_given, PyObject* kwnames) {
  const Operator* op = reinterpret_cast<Operator*>(self);
  const bool positional = !kwnames || PyTuple_GET_SIZE(kwnames) == 0;
  if (positional && PyVectorcall_NARGS(n_given) == op->entry->arity) {
    const int seen = watched(op->watchers);
    if (seen < 0) return nullptr;
    if (Tensor made = seen ? nullptr : call_directly(op, args)) return wrapped(op, made);
  }
  return PyObject_Vectorcall(op->function, args, n_given, kwnames);
}

PyObject* operator_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"target", "address", "function", "wrap", "tensor_type",
                                      "parameter_type", "watchers", "helpers", "tensor_offset",
                                      "cpu", nullptr};
  const char* target;
  unsigned long long address;
  PyObject *function, *wrap, *tensor_type, *parameter_type, *watchers, *helpers;
  long long offset;
  int cpu;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sKOOOOO!O!Li", const_cast<char**>(names), &target,
                                   &address, &function, &wrap, &tensor_type, &parameter_type,
                                   &PyTuple_Type, &watchers, &PyTuple_Type, &helpers, &offset,
                                   &cpu))
    return nullptr;
  const Entry* entry = nullptr;
  for (const Entry& e : kEntries)
    if (!strcmp(e.target, target)) entry = &e;
  if (!entry || !address || offset <= 0 || PyTuple_GET_SIZE(helpers) != kHelpers) {
    PyErr_Format(PyExc_ValueError, "gyrator: %.200s cannot be called directly", target);
    return nullptr;
  }
  Operator* op = reinterpret_cast<Operator*>(type->tp_alloc(type, 0));
  if (!op) return nullptr;
  op->call = call_operator;
  op->entry = entry;
  op->address = reinterpret_cast<void*>(address);
  op->function = Py_NewRef(function);
  op->wrap = Py_NewRef(wrap);
  op->tensor_type = Py_NewRef(tensor_type);
  op->parameter_type = Py_NewRef(parameter_type);
  op->watchers = Py_NewRef(watchers);
  op->tensor_offset = offset;
  op->cpu = cpu;
  read_helpers(helpers, &op->shim);
  return reinterpret_cast<PyObject*>(op);
}

int operator_traverse(PyObject* self, visitproc visit, void* arg) {
  Operator* op = reinterpret_cast<Operator*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(op->function);
  Py_VISIT(op->wrap);
  Py_VISIT(op->tensor_type);
  Py_VISIT(op->parameter_type);
  Py_VISIT(op->watchers);
  return 0;
}

int operator_clear(PyObject* self) {
  Operator* op = reinterpret_cast<Operator*>(self);
  Py_CLEAR(op->function);
  Py_CLEAR(op->wrap);
  Py_CLEAR(op->tensor_type);
  Py_CLEAR(op->parameter_type);
  Py_CLEAR(op->watchers);
  return 0;
}

void operator_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  operator_clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef operator_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Operator, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot operator_slots[] = {{Py_tp_new, (void*)operator_new},
                                {Py_tp_dealloc, (void*)operator_dealloc},
                                {Py_tp_traverse, (void*)operator_traverse},
                                {Py_tp_clear, (void*)operator_clear},
                                {Py_tp_call, (void*)PyVectorcall_Call},
                                {Py_tp_members, operator_members},
                                {0, nullptr}};

PyType_Spec operator_spec = {"_gyrunner.Operator", sizeof(Operator), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                             operator_slots};

}  // namespace
