// Calls C++ host programs from Python, converting arguments to handles, results to tensors, and
// errors to exceptions. The interface of the programs (GyProgramContext ...) precedes this text.
//
// An at::Tensor is one pointer, whose value is Tensor._cdata, so the address of that pointer is a
// borrowed handle. `Program` checks this on a tensor before relying on it.

namespace {

using Entry = int32_t (*)(GyProgramContext*, GyValue*, GyValue*);
using Wrap = PyObject* (*)(const void* tensor);

// Python callables that a program needs, in the order of the tuple `hooks`.
enum Hook {
  CALL_OP, LAUNCH_USER, KERNEL_ERROR, NAN_ERROR, DESCRIPTOR, TYPED, STEAL,
  LAYOUT_ERROR, RESOLVED, HOOKS
};

struct Program {
  PyObject_HEAD
  vectorcallfunc call;
  Entry entry;
  Wrap wrap;           // null if unavailable: then use the hook STEAL
  PyObject* tensor_type;
  PyObject* cdata;     // the getter of Tensor._cdata
  PyObject* hooks;
  PyObject* kinds;     // bytes, a letter per parameter: t(ensor), c for a tensor that is passed to
                       // ops, s(ize), o(paque)
  PyObject* shape;     // bytes of int32: -1 for a leaf, n before the items of a list of n
  PyObject* kernels;   // bytes of addresses
  PyObject* parts;     // bytes of addresses
  PyObject* owners;    // objects that must outlive the program
  AtenTensorHandle* constants;
  Py_ssize_t n_constants;
  Py_ssize_t n_outputs;
  int64_t key_offset;  // offset of the dispatch keys in a TensorImpl; 0: unknown
  uint64_t pending;    // the dispatch keys of the conjugate and negative bits
  GyTimes* times;      // null unless the program is timed
  Py_ssize_t n_kernels;
};

// One call, passed to hooks as their state.
struct Call {
  Program* program;
  PyThreadState* thread;
  PyObject* type;  // the exception of a hook
  PyObject* value;
  PyObject* trace;
};

PyObject* hook(Program* self, Hook which) { return PyTuple_GET_ITEM(self->hooks, which); }

// Tensors ----------------------------------------------------------------------------------------

// Returns the TensorImpl of a tensor, or null with an exception.
void* impl_of(Program* self, PyObject* object) {
  if (!PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(self->tensor_type))) {
    PyErr_Format(PyExc_TypeError, "expected a tensor, got %s", Py_TYPE(object)->tp_name);
    return nullptr;
  }
  PyGetSetDef* get = reinterpret_cast<PyGetSetDescrObject*>(self->cdata)->d_getset;
  PyObject* number = get->get(object, get->closure);
  if (!number) return nullptr;
  void* impl = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  return impl;
}

// Returns a handle owned by the caller, or null with an exception.
AtenTensorHandle handle_of(Program* self, PyObject* object) {
  void* impl = impl_of(self, object);
  if (!impl) return nullptr;
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_new_tensor_handle(reinterpret_cast<AtenTensorHandle>(&impl), &handle) != 0)
    PyErr_SetString(PyExc_RuntimeError, "libtorch could not create a tensor handle");
  return handle;
}

// Returns the tensor of a borrowed handle.
PyObject* tensor_of(Program* self, AtenTensorHandle handle) {
  if (self->wrap) return self->wrap(handle);
  AtenTensorHandle own = nullptr;
  if (aoti_torch_new_tensor_handle(handle, &own) != 0) {
    PyErr_SetString(PyExc_RuntimeError, "libtorch could not create a tensor handle");
    return nullptr;
  }
  PyObject* capsule = PyCapsule_New(own, nullptr, nullptr);
  PyObject* result = capsule ? PyObject_CallOneArg(hook(self, STEAL), capsule) : nullptr;
  Py_XDECREF(capsule);
  aoti_torch_delete_tensor_object(own);  // the hook shares the tensor, but does not free the handle
  return result;
}

// Values -----------------------------------------------------------------------------------------

PyObject* object_of(Program* self, const GyValue& value);

PyObject* list_of(Program* self, const GyValue& value) {
  PyObject* list = PyList_New(value.count);
  for (int32_t k = 0; list && k < value.count; ++k) {
    PyObject* item = object_of(self, value.items[k]);
    if (!item) Py_CLEAR(list);
    else PyList_SET_ITEM(list, k, item);
  }
  return list;
}

PyObject* numbers(const int64_t* values, Py_ssize_t count) {
  PyObject* result = PyTuple_New(count);
  for (Py_ssize_t k = 0; result && k < count; ++k) {
    PyObject* item = PyLong_FromLongLong(values[k]);
    if (!item) Py_CLEAR(result);
    else PyTuple_SET_ITEM(result, k, item);
  }
  return result;
}

PyObject* descriptor_of(Program* self, const GyDescriptor& d) {
  PyObject* tensor = tensor_of(self, d.tensor);
  PyObject* shape = numbers(d.shape, d.rank);
  PyObject* block = numbers(d.block, d.rank);
  PyObject* result = nullptr;
  if (tensor && shape && block)
    result = PyObject_CallFunction(
        hook(self, DESCRIPTOR), "OOOLO", tensor, shape, block,
        static_cast<long long>(d.element_bytes), d.stable ? Py_True : Py_False);
  Py_XDECREF(tensor);
  Py_XDECREF(shape);
  Py_XDECREF(block);
  return result;
}

// Returns a Python object for a value; tensor handles are borrowed.
PyObject* object_of(Program* self, const GyValue& value) {
  switch (value.kind) {
    case GY_NONE: Py_RETURN_NONE;
    case GY_TENSOR: return tensor_of(self, value.tensor);
    case GY_INT: return PyLong_FromLongLong(value.integer);
    case GY_FLOAT: return PyFloat_FromDouble(value.real);
    case GY_BOOL: return PyBool_FromLong(value.integer != 0);
    case GY_TEXT: return PyUnicode_DecodeUTF8(value.text, value.count, nullptr);
    case GY_TYPE: return PyObject_CallFunction(hook(self, TYPED), "s", value.text);
    case GY_OPAQUE: return Py_NewRef(reinterpret_cast<PyObject*>(value.bits));
    case GY_LIST: return list_of(self, value);
    case GY_DESCRIPTOR: return descriptor_of(self, *value.descriptor);
    case GY_COMPLEX: return PyComplex_FromDoubles(value.items[0].real, value.items[1].real);
  }
  PyErr_Format(PyExc_SystemError, "no value is of kind %d", value.kind);
  return nullptr;
}

// Converts the result of a hook: a tensor, whose handle is owned by the value, or an integer.
bool value_of(Program* self, PyObject* object, GyValue* value) {
  if (object == Py_None) {
    value->kind = GY_NONE;
    return true;
  }
  if (PyLong_Check(object)) {
    value->kind = PyBool_Check(object) ? GY_BOOL : GY_INT;
    value->integer = PyLong_AsLongLong(object);
    return value->integer != -1 || !PyErr_Occurred();
  }
  AtenTensorHandle handle = handle_of(self, object);
  if (!handle) return false;
  value->kind = GY_TENSOR;
  value->tensor = handle;
  return true;
}

// Hooks ------------------------------------------------------------------------------------------

// Stores the exception of a hook until the program has returned.
int32_t hook_failed(Call* call) {
  PyErr_Fetch(&call->type, &call->value, &call->trace);
  return GY_HOOK_ERROR;
}

bool take_results(Program* self, PyObject* output, GyValue* results, int32_t count) {
  PyObject* fast = PySequence_Fast(output, "a hook must return a sequence");
  if (!fast) return false;
  bool right = PySequence_Fast_GET_SIZE(fast) == count;
  if (!right)
    PyErr_Format(
        PyExc_RuntimeError, "an op returned %zd results, expected %d",
        PySequence_Fast_GET_SIZE(fast), count);
  for (int32_t k = 0; right && k < count; ++k)
    right = value_of(self, PySequence_Fast_GET_ITEM(fast, k), &results[k]);
  Py_DECREF(fast);
  return right;
}

int32_t call_op(
    void* state, const char* op, const char* overload, const GyValue* args, int32_t n_args,
    const char* letters, GyValue* results, int32_t n_results, char*, int64_t) {
  Call* call = static_cast<Call*>(state);
  Program* self = call->program;
  PyEval_RestoreThread(call->thread);
  GyValue all{GY_LIST, n_args, {nullptr}};
  all.items = args;
  PyObject* items = list_of(self, all);
  PyObject* output =
      items ? PyObject_CallFunction(hook(self, CALL_OP), "ssNs", op, overload, items, letters)
            : nullptr;
  bool done = output && take_results(self, output, results, n_results);
  Py_XDECREF(output);
  int32_t status = done ? static_cast<int32_t>(GY_OK) : hook_failed(call);
  call->thread = PyEval_SaveThread();
  return status;
}

int32_t launch_user(
    void* state, const char* kernel, const int64_t* grids, int32_t n_grids,
    const char* const* names, const GyValue* values, int32_t n_values, int32_t, char*, int64_t) {
  Call* call = static_cast<Call*>(state);
  Program* self = call->program;
  PyEval_RestoreThread(call->thread);
  PyObject* grid = PyList_New(0);
  for (int32_t k = 0; grid && k < n_grids; ++k) {
    PyObject* one = numbers(grids + 3 * k, 3);
    if (!one || PyList_Append(grid, one) != 0) Py_CLEAR(grid);
    Py_XDECREF(one);
  }
  PyObject* items = PyDict_New();
  for (int32_t k = 0; items && k < n_values; ++k) {
    PyObject* item = object_of(self, values[k]);
    if (!item || PyDict_SetItemString(items, names[k], item) != 0) Py_CLEAR(items);
    Py_XDECREF(item);
  }
  PyObject* done = nullptr;
  if (grid && items)
    done = PyObject_CallFunction(hook(self, LAUNCH_USER), "sOO", kernel, grid, items);
  Py_XDECREF(grid);
  Py_XDECREF(items);
  int32_t status = done ? static_cast<int32_t>(GY_OK) : hook_failed(call);
  Py_XDECREF(done);
  call->thread = PyEval_SaveThread();
  return status;
}

// Calls ------------------------------------------------------------------------------------------

// Raises the error of a failed program.
void raise(Program* self, int32_t status, GyProgramContext& context, Call& call) {
  PyObject* result = nullptr;
  switch (status) {
    case GY_HOOK_ERROR: return PyErr_Restore(call.type, call.value, call.trace);
    case GY_DIVISION_ERROR: return PyErr_SetString(PyExc_ZeroDivisionError, context.error);
    case GY_INDEX_ERROR: return PyErr_SetString(PyExc_IndexError, context.error);
    case GY_OVERFLOW_ERROR: return PyErr_SetString(PyExc_OverflowError, context.error);
    case GY_VALUE_ERROR: return PyErr_SetString(PyExc_ValueError, context.error);
    case GY_INPUT_ERROR:
    case GY_RESULT_ERROR:
      result = PyObject_CallFunction(
          hook(self, LAYOUT_ERROR), "ss",
          status == GY_INPUT_ERROR ? "GY-RUNTIME-090" : "GY-RUNTIME-091", context.error);
      break;
    case GY_KERNEL_ERROR:
      result = PyObject_CallFunction(
          hook(self, KERNEL_ERROR), "LL", static_cast<long long>(context.kernel),
          static_cast<long long>(context.kernel_code));
      break;
    case GY_NAN_ERROR: {
      PyObject* tensor = tensor_of(self, context.culprit);
      aoti_torch_delete_tensor_object(context.culprit);
      if (tensor)
        result = PyObject_CallFunction(hook(self, NAN_ERROR), "Ns", tensor, context.error);
      break;
    }
    default: break;
  }
  Py_XDECREF(result);
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, context.error);
}

// Returns the next result as an object, and advances `at` and `out`.
PyObject* next_result(Program* self, const int32_t*& at, const GyValue*& out) {
  int32_t count = *at++;
  if (count < 0) return object_of(self, *out++);
  PyObject* list = PyList_New(count);
  for (int32_t k = 0; list && k < count; ++k) {
    PyObject* item = next_result(self, at, out);
    if (!item) Py_CLEAR(list);
    else PyList_SET_ITEM(list, k, item);
  }
  return list;
}

PyObject* results(Program* self, const GyValue* out) {
  const int32_t* at = reinterpret_cast<const int32_t*>(PyBytes_AS_STRING(self->shape));
  int32_t count = *at++;
  PyObject* result = PyTuple_New(count);
  for (int32_t k = 0; result && k < count; ++k) {
    PyObject* item = next_result(self, at, out);
    if (!item) Py_CLEAR(result);
    else PyTuple_SET_ITEM(result, k, item);
  }
  return result;
}

void drop(GyValue* values, Py_ssize_t count) {
  for (Py_ssize_t k = 0; k < count; ++k)
    if (values[k].kind == GY_TENSOR) aoti_torch_delete_tensor_object(values[k].tensor);
}

// The arguments of a call, and their owners.
struct Arguments {
  Py_ssize_t count;
  Scratch<GyValue, 32> in;
  Scratch<PyObject*, 32> owners;         // opaque objects, and lent tensors
  Scratch<void*, 32> impls;              // the address of an element is a lent handle
  Scratch<AtenTensorHandle, 32> handles;  // second owners of tensors that are lent to ops

  explicit Arguments(Py_ssize_t n) : count(n), in(n), owners(n), impls(n), handles(n) {
    if (!allocated()) return;
    memset(owners.data, 0, sizeof(PyObject*) * n);
    memset(handles.data, 0, sizeof(AtenTensorHandle) * n);
  }
  bool allocated() const { return in.data && owners.data && impls.data && handles.data; }
  ~Arguments() {
    for (Py_ssize_t k = 0; allocated() && k < count; ++k) {
      if (handles.data[k]) aoti_torch_delete_tensor_object(handles.data[k]);
      Py_XDECREF(owners.data[k]);
    }
  }
};

// Returns whether a tensor has the conjugate or negative bit; -1 with an exception.
int is_pending(Program* self, PyObject* object) {
  void* impl = impl_of(self, object);
  if (!impl) return -1;
  if (!self->key_offset) {  // ask Python
    static const char* const methods[] = {"is_conj", "is_neg"};
    for (const char* method : methods) {
      PyObject* answer = PyObject_CallMethod(object, method, nullptr);
      const int yes = answer ? PyObject_IsTrue(answer) : -1;
      Py_XDECREF(answer);
      if (yes) return yes;
    }
    return 0;
  }
  uint64_t keys;
  memcpy(&keys, static_cast<char*>(impl) + self->key_offset, sizeof keys);
  return (keys & self->pending) != 0;
}

// Lends a tensor that has other owners, and so outlives the program's run. When torch adds a second
// owner to a tensor whose first owner is a Python object, or removes it, it acquires the GIL,
// without which programs run. So no owner is added if only kernels use the tensor, and if ops do,
// the second owner is added beforehand.
bool lend(Program* self, PyObject* object, bool called, Arguments& to, Py_ssize_t k) {
  to.impls.data[k] = impl_of(self, object);
  if (!to.impls.data[k]) return false;
  to.owners.data[k] = Py_NewRef(object);
  GyValue& value = to.in.data[k];
  value.kind = GY_LENT;
  value.tensor = reinterpret_cast<AtenTensorHandle>(&to.impls.data[k]);
  if (!called || aoti_torch_new_tensor_handle(value.tensor, &to.handles.data[k]) == 0) return true;
  PyErr_SetString(PyExc_RuntimeError, "libtorch could not create a tensor handle");
  return false;
}

// Converts each argument of the list to a value, and clears the list, so that tensors without other
// owners can be freed while the program runs.
bool arguments(Program* self, PyObject* args, Arguments& to) {
  GyValue* in = to.in.data;
  const char* kinds = PyBytes_AS_STRING(self->kinds);
  Py_ssize_t count = PyBytes_GET_SIZE(self->kinds);
  for (Py_ssize_t k = 0; k < count; ++k) {
    PyObject* object = PyList_GET_ITEM(args, k);
    bool right = true;
    switch (kinds[k]) {
      case 't':
      case 'c':
        if (const int pending = is_pending(self, object)) {
          PyObject* result =
              pending < 0 ? nullptr
                          : PyObject_CallFunction(hook(self, RESOLVED), "On", object, k);
          if (result) in[k].tensor = handle_of(self, result);
          in[k].kind = GY_TENSOR;
          right = result && in[k].tensor;
          to.owners.data[k] = result;
        } else if (Py_REFCNT(object) > 1) {
          right = lend(self, object, kinds[k] == 'c', to, k);
        } else {
          in[k].tensor = handle_of(self, object);
          in[k].kind = GY_TENSOR;
          right = in[k].tensor != nullptr;
        }
        break;
      case 's':
        in[k].integer = PyLong_AsLongLong(object);
        right = in[k].integer != -1 || !PyErr_Occurred();
        in[k].kind = GY_INT;
        break;
      default:
        in[k].bits = reinterpret_cast<uint64_t>(object);
        in[k].kind = GY_OPAQUE;
        to.owners.data[k] = Py_NewRef(object);
    }
    if (!right) {
      drop(in, k);
      return false;
    }
  }
  if (count == 0 || PyList_SetSlice(args, 0, count, nullptr) == 0) return true;
  drop(in, count);
  return false;
}

PyObject* run(Program* self, GyValue* in) {
  Scratch<GyValue, 32> out(self->n_outputs);
  if (!out.data) {
    drop(in, PyBytes_GET_SIZE(self->kinds));
    return nullptr;
  }
  char error[2048];
  Call call{self, nullptr, nullptr, nullptr, nullptr};
  GyProgramContext context{};
  context.kernels = reinterpret_cast<const GyKernel*>(PyBytes_AS_STRING(self->kernels));
  context.parts = reinterpret_cast<const GyPart*>(PyBytes_AS_STRING(self->parts));
  context.constants = self->constants;
  context.error = error;
  context.error_size = sizeof error;
  context.times = self->times;
  context.state = &call;
  context.call_op = call_op;
  context.launch_user = launch_user;
  call.thread = PyEval_SaveThread();
  bool grad = aoti_torch_grad_mode_is_enabled();
  if (grad) aoti_torch_grad_mode_set_enabled(false);
  int32_t status = self->entry(&context, in, out.data);
  if (grad) aoti_torch_grad_mode_set_enabled(true);
  PyEval_RestoreThread(call.thread);
  if (status != GY_OK) {
    raise(self, status, context, call);
    return nullptr;
  }
  PyObject* result = results(self, out.data);
  drop(out.data, self->n_outputs);
  return result;
}

PyObject* program_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  Program* self = reinterpret_cast<Program*>(object);
  Py_ssize_t count = PyBytes_GET_SIZE(self->kinds);
  if (PyVectorcall_NARGS(nargsf) != 1 || names || !PyList_CheckExact(args[0]) ||
      PyList_GET_SIZE(args[0]) != count) {
    PyErr_Format(PyExc_TypeError, "a host program takes a list of %zd arguments", count);
    return nullptr;
  }
  after_fork();
  Arguments converted(count);
  if (!converted.allocated() || !arguments(self, args[0], converted)) return nullptr;
  return run(self, converted.in.data);
}

// The type ---------------------------------------------------------------------------------------

// Checks that a handle made from `_cdata` reads the tensor's data.
bool works(Program* self, PyObject* probe) {
  void* impl = impl_of(self, probe);
  if (!impl) return false;
  void* data = nullptr;
  int64_t size = 0;
  AtenTensorHandle handle = reinterpret_cast<AtenTensorHandle>(&impl);
  bool same = aoti_torch_get_data_ptr(handle, &data) == 0 &&
              aoti_torch_get_size(handle, 0, &size) == 0;
  PyObject* output = same ? PyObject_CallMethod(probe, "data_ptr", nullptr) : nullptr;
  same = output && PyLong_AsVoidPtr(output) == data && size == 3;
  Py_XDECREF(output);
  if (!same && !PyErr_Occurred())
    PyErr_SetString(PyExc_ImportError, "this torch has a different tensor layout");
  return same;
}

PyObject* program_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {
      "entry", "kinds", "shape", "n_outputs", "kernels", "parts", "constants", "hooks",
      "tensor_type", "cdata", "wrap", "probe", "timed", "owners", "key_offset", "pending", nullptr};
  unsigned long long entry = 0, wrap = 0, pending = 0;
  long long key_offset = 0;
  PyObject *kinds, *shape, *kernels, *parts, *constants, *hooks, *tensor_type, *cdata, *probe;
  PyObject* owners;
  Py_ssize_t n_outputs;
  int timed;
  if (!PyArg_ParseTupleAndKeywords(
          args, keywords, "KSSnSSO!O!OO!KOpOLK", const_cast<char**>(names), &entry, &kinds, &shape,
          &n_outputs, &kernels, &parts, &PyTuple_Type, &constants, &PyTuple_Type, &hooks,
          &tensor_type, &PyGetSetDescr_Type, &cdata, &wrap, &probe, &timed, &owners, &key_offset,
          &pending))
    return nullptr;
  if (PyTuple_GET_SIZE(hooks) != HOOKS) {
    PyErr_Format(PyExc_ValueError, "%d hooks are needed", HOOKS);
    return nullptr;
  }
  Program* self = reinterpret_cast<Program*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->call = program_call;
  self->entry = reinterpret_cast<Entry>(entry);
  self->wrap = reinterpret_cast<Wrap>(wrap);
  self->tensor_type = Py_NewRef(tensor_type);
  self->cdata = Py_NewRef(cdata);
  self->hooks = Py_NewRef(hooks);
  self->kinds = Py_NewRef(kinds);
  self->shape = Py_NewRef(shape);
  self->kernels = Py_NewRef(kernels);
  self->parts = Py_NewRef(parts);
  self->owners = Py_NewRef(owners);
  self->n_outputs = n_outputs;
  self->n_kernels = PyBytes_GET_SIZE(kernels) / static_cast<Py_ssize_t>(sizeof(GyKernel));
  self->n_constants = 0;
  self->key_offset = key_offset;
  self->pending = pending;
  Py_ssize_t count = PyTuple_GET_SIZE(constants);
  self->constants =
      static_cast<AtenTensorHandle*>(PyMem_Calloc(count ? count : 1, sizeof(AtenTensorHandle)));
  self->times = timed ? static_cast<GyTimes*>(PyMem_Calloc(self->n_kernels + 1, sizeof(GyTimes)))
                      : nullptr;
  bool right = self->constants && (self->times || !timed) && works(self, probe);
  for (; right && self->n_constants < count; ++self->n_constants) {
    AtenTensorHandle result = handle_of(self, PyTuple_GET_ITEM(constants, self->n_constants));
    right = result != nullptr;
    if (!right) break;
    self->constants[self->n_constants] = result;
  }
  if (right) return reinterpret_cast<PyObject*>(self);
  if (!PyErr_Occurred()) PyErr_NoMemory();
  Py_DECREF(self);
  return nullptr;
}

int program_traverse(PyObject* object, visitproc visit, void* arg) {
  Program* self = reinterpret_cast<Program*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->hooks);
  return 0;
}

int program_clear(PyObject* object) {
  Py_CLEAR(reinterpret_cast<Program*>(object)->hooks);
  return 0;
}

void program_dealloc(PyObject* object) {
  Program* self = reinterpret_cast<Program*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  for (Py_ssize_t k = 0; k < self->n_constants; ++k)
    aoti_torch_delete_tensor_object(self->constants[k]);
  PyMem_Free(self->constants);
  PyMem_Free(self->times);
  Py_XDECREF(self->tensor_type);
  Py_XDECREF(self->cdata);
  Py_XDECREF(self->hooks);
  Py_XDECREF(self->kinds);
  Py_XDECREF(self->shape);
  Py_XDECREF(self->kernels);
  Py_XDECREF(self->parts);
  Py_XDECREF(self->owners);
  type->tp_free(object);
  Py_DECREF(type);
}

// Rows (calls, total ns, least ns), one per kernel; empty unless the program is timed.
PyObject* program_timings(PyObject* object, PyObject*) {
  Program* self = reinterpret_cast<Program*>(object);
  Py_ssize_t count = self->times ? self->n_kernels : 0;
  PyObject* rows = PyList_New(count);
  for (Py_ssize_t k = 0; rows && k < count; ++k) {
    const GyTimes& row = self->times[k];
    PyObject* result = Py_BuildValue(
        "LLL", static_cast<long long>(row.calls), static_cast<long long>(row.total),
        static_cast<long long>(row.least));
    if (!result) Py_CLEAR(rows);
    else PyList_SET_ITEM(rows, k, result);
  }
  return rows;
}

PyMethodDef program_methods[] = {
    {"timings", program_timings, METH_NOARGS, "Rows (calls, total ns, least ns) of the kernels."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef program_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Program, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot program_slots[] = {{Py_tp_new, (void*)program_new},
                               {Py_tp_dealloc, (void*)program_dealloc},
                               {Py_tp_traverse, (void*)program_traverse},
                               {Py_tp_clear, (void*)program_clear},
                               {Py_tp_call, (void*)PyVectorcall_Call},
                               {Py_tp_methods, program_methods},
                               {Py_tp_members, program_members},
                               {0, nullptr}};

PyType_Spec program_spec = {
    "_gycaller.Program", sizeof(Program), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, program_slots};

int module_exec(PyObject* module) {
  if (watch_forks()) return -1;
  PyObject* type = PyType_FromSpec(&program_spec);
  if (!type) return -1;
  int failed = PyModule_AddObjectRef(module, "Program", type);
  Py_DECREF(type);
  return failed;
}

PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void*)module_exec}, {0, nullptr}};

PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "_gycaller", "Calls C++ host programs.", 0, nullptr,
    module_slots, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__gycaller() { return PyModuleDef_Init(&module_def); }
