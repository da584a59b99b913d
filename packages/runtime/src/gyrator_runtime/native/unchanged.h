// A callable that tells whether tensors have been written to. Prepended, after operators.h, to
// gyrunner.cpp.

namespace {

using DataPtr = void* (*)(PyObject*);
using Version = int64_t (*)(Tensor);  // throws for tensors of inference mode

struct Recorded {
  PyObject* tensor;  // owned by Unchanged::tensors
  Py_ssize_t index;
  int64_t version;
  void* data;
};

struct Unchanged {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* tensors;  // tuple
  DataPtr data_ptr;
  Version version;
  int64_t tensor_offset;  // of the at::Tensor in a Python tensor object
  Recorded* recorded;
  Py_ssize_t n;
};

bool is_unchanged(const Unchanged* self, const Recorded& before) {
  try {
    const Tensor tensor = reinterpret_cast<char*>(before.tensor) + self->tensor_offset;
    return self->version(tensor) == before.version && self->data_ptr(before.tensor) == before.data;
  } catch (...) {
    PyErr_Clear();
    return false;
  }
}

PyObject* call_unchanged(PyObject* object, PyObject* const* args, size_t n_given, PyObject* kwnames) {
  const Unchanged* self = reinterpret_cast<Unchanged*>(object);
  if ((kwnames && PyTuple_GET_SIZE(kwnames)) || PyVectorcall_NARGS(n_given) != 1 ||
      !PyList_CheckExact(args[0])) {
    PyErr_SetString(PyExc_TypeError, "gyrator: the tensors to check must be given as one list");
    return nullptr;
  }
  const Py_ssize_t size = PyList_GET_SIZE(args[0]);
  for (const Recorded* r = self->recorded; r < self->recorded + self->n; r++)
    if (r->index >= size || PyList_GET_ITEM(args[0], r->index) != r->tensor ||
        !is_unchanged(self, *r))
      Py_RETURN_FALSE;
  Py_RETURN_TRUE;
}

// Reads the items of three tuples of integers; false with an exception set on failure.
bool read_recorded(Unchanged* self, PyObject* indices, PyObject* versions, PyObject* addresses) {
  const Py_ssize_t n = PyTuple_GET_SIZE(self->tensors);
  if (PyTuple_GET_SIZE(indices) != n || PyTuple_GET_SIZE(versions) != n ||
      PyTuple_GET_SIZE(addresses) != n) {
    PyErr_SetString(PyExc_ValueError, "gyrator: each tensor needs an index, a version, an address");
    return false;
  }
  self->recorded = static_cast<Recorded*>(PyMem_Calloc(n + 1, sizeof(Recorded)));
  if (!self->recorded) {
    PyErr_NoMemory();
    return false;
  }
  self->n = n;
  for (Py_ssize_t i = 0; i < n; i++) {
    Recorded* r = self->recorded + i;
    r->tensor = PyTuple_GET_ITEM(self->tensors, i);
    r->index = PyLong_AsSsize_t(PyTuple_GET_ITEM(indices, i));
    r->version = PyLong_AsLongLong(PyTuple_GET_ITEM(versions, i));
    r->data = PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, i));
    if (PyErr_Occurred()) return false;
    if (r->index < 0) {
      PyErr_SetString(PyExc_ValueError, "gyrator: an index is negative");
      return false;
    }
  }
  return true;
}

PyObject* unchanged_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"tensors",   "versions",      "addresses",
                                      "indices",    "tensor_offset", "version_address",
                                      "data_ptr_address", nullptr};
  PyObject *tensors, *versions, *addresses, *indices;
  long long offset;
  unsigned long long version, data_ptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O!LKK", const_cast<char**>(names),
                                   &PyTuple_Type, &tensors, &PyTuple_Type, &versions, &PyTuple_Type,
                                   &addresses, &PyTuple_Type, &indices, &offset, &version, &data_ptr))
    return nullptr;
  if (!version || !data_ptr || offset <= 0) {
    PyErr_SetString(PyExc_ValueError, "gyrator: tensors cannot be read directly");
    return nullptr;
  }
  Unchanged* self = reinterpret_cast<Unchanged*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->call = call_unchanged;
  self->tensors = Py_NewRef(tensors);
  self->tensor_offset = offset;
  self->version = reinterpret_cast<Version>(version);
  self->data_ptr = reinterpret_cast<DataPtr>(data_ptr);
  if (!read_recorded(self, indices, versions, addresses)) Py_CLEAR(self);
  return reinterpret_cast<PyObject*>(self);
}

int unchanged_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<Unchanged*>(self)->tensors);
  return 0;
}

int unchanged_clear(PyObject* object) {
  Unchanged* self = reinterpret_cast<Unchanged*>(object);
  self->n = 0;  // the records borrow from the tuple
  Py_CLEAR(self->tensors);
  return 0;
}

void unchanged_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  unchanged_clear(self);
  PyMem_Free(reinterpret_cast<Unchanged*>(self)->recorded);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef unchanged_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Unchanged, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot unchanged_slots[] = {{Py_tp_new, (void*)unchanged_new},
                                 {Py_tp_dealloc, (void*)unchanged_dealloc},
                                 {Py_tp_traverse, (void*)unchanged_traverse},
                                 {Py_tp_clear, (void*)unchanged_clear},
                                 {Py_tp_call, (void*)PyVectorcall_Call},
                                 {Py_tp_members, unchanged_members},
                                 {0, nullptr}};

PyType_Spec unchanged_spec = {"_gyrunner.Unchanged", sizeof(Unchanged), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                              unchanged_slots};

}  // namespace
