// Calls of a CPU program at one choice of sizes, as one function of Python: checks that the arguments are arrays or tensors of the
// program's types, allocates results, and calls the program's C kernels, or its function `run`. It returns None, without having
// done anything, where the program's own code has to make the call. Compiled by direct_calls.py, made by host_calls.py.
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/ndarraytypes.h>
#include <stddef.h>
#include <string.h>

typedef struct {
    PyObject *array, *types, *shapes;   // numpy.ndarray; of each input its dtype, and its shape as a tuple
    PyObject *guard, *address;          // whether arguments are tensors of these types; the address of a tensor. None: tensors are refused
    PyObject *of_arrays, *of_tensors;   // tuples of functions that allocate the results of a call with arrays, with tensors
    PyObject *check, *mode;             // called with the tuple of arguments first; whether the caller is in a mode of Torch to leave
    PyObject *acquire, *release;        // of the program's lock
    PyObject *run, *handed;             // weak reference to the program; function that makes tensors of its results, or None
    void (*steps)(void *const *);       // C function of the program that makes the whole call (NULL: `run` does)
    void **table;                       // its argument: the addresses of tensors, arrays and weights
    Py_ssize_t *places;                 // which of the inputs and results are at the start of the table
    Py_ssize_t moving, inputs, results;
} Call;

static PyObject **members(Call *c, size_t *count) {
    *count = offsetof(Call, steps) / sizeof(PyObject *);
    return (PyObject **)c;
}

static void freed(PyObject *capsule) {
    size_t count;
    Call *c = PyCapsule_GetPointer(capsule, "host call");
    PyObject **held = members(c, &count);
    for (size_t i = 0; i < count; i++) Py_XDECREF(held[i]);
    PyMem_Free(c->table), PyMem_Free(c->places), PyMem_Free(c);
}

// Whether all arguments are arrays, row-major and of the inputs' types.
static int are_arrays(Call *c, PyObject *const *given) {
    for (Py_ssize_t i = 0; i < c->inputs; i++) {
        if ((PyObject *)Py_TYPE(given[i]) != c->array) return 0;
        PyArrayObject *x = (PyArrayObject *)given[i];
        PyObject *shape = PyTuple_GET_ITEM(c->shapes, i);
        if ((PyObject *)PyArray_DESCR(x) != PyTuple_GET_ITEM(c->types, i) || !PyArray_IS_C_CONTIGUOUS(x) ||
            PyArray_NDIM(x) != PyTuple_GET_SIZE(shape))
            return 0;
        for (int axis = 0; axis < PyArray_NDIM(x); axis++)
            if (PyArray_DIM(x, axis) != PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, axis))) return 0;
    }
    return 1;
}

// Call a function; 1 if it gives `wanted`, 0 if not, -1 on an error.
static int gives(PyObject *function, PyObject *const *given, Py_ssize_t count, PyObject *wanted) {
    PyObject *found = PyObject_Vectorcall(function, given, count, NULL);
    if (!found) return -1;
    Py_DECREF(found);
    return found == wanted;
}

static void *address_of(Call *c, PyObject *x) {
    if ((PyObject *)Py_TYPE(x) == c->array) return PyArray_DATA((PyArrayObject *)x);
    PyObject *found = PyObject_CallOneArg(c->address, x);
    void *where = found ? PyLong_AsVoidPtr(found) : NULL;
    Py_XDECREF(found);
    return where;
}

// Make a call whose lock is held; None if the program was released or bound again. `all`: the inputs, then room for the results,
// which are new references.
static PyObject *made(Call *c, PyObject **all, int tensors) {
    PyObject *makers = tensors ? c->of_tensors : c->of_arrays, *found = NULL, *run = PyObject_CallNoArgs(c->run);
    Py_ssize_t count = 0;
    if (!run || run == Py_None) return run;
    for (; count < PyTuple_GET_SIZE(makers); count++)
        if (!(all[c->inputs + count] = PyObject_CallNoArgs(PyTuple_GET_ITEM(makers, count)))) goto end;
    if (c->steps) {
        for (Py_ssize_t i = 0; i < c->moving; i++)
            if (!(c->table[i] = address_of(c, all[c->places[i]]))) {
                if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "an argument has no memory");
                goto end;
            }
        PyThreadState *state = PyEval_SaveThread();
        c->steps(c->table);
        PyEval_RestoreThread(state);
        if ((found = PyTuple_New(count)))
            for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(found, i, Py_NewRef(all[c->inputs + i]));
    } else {
        found = PyObject_Vectorcall(run, all, c->inputs + count, NULL);
    }
end:
    while (count) Py_DECREF(all[c->inputs + --count]);
    Py_DECREF(run);
    return found;
}

static PyObject *called(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    Call *c = PyCapsule_GetPointer(self, "host call");
    int there, tensors = 0;
    if (!c) return NULL;
    if (count != c->inputs) Py_RETURN_NONE;
    if (!are_arrays(c, given)) {
        if (c->guard == Py_None) Py_RETURN_NONE;
        if ((there = gives(c->guard, given, count, Py_True)) < 0) return NULL;
        if (!there) Py_RETURN_NONE;
        tensors = 1;
    }
    if (c->mode != Py_None) {
        if ((there = gives(c->mode, NULL, 0, Py_False)) < 0) return NULL;
        if (!there) Py_RETURN_NONE;
    }
    if (c->check != Py_None) {
        PyObject *arguments = PyTuple_New(count), *done;
        if (!arguments) return NULL;
        for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(arguments, i, Py_NewRef(given[i]));
        done = PyObject_CallOneArg(c->check, arguments);
        Py_DECREF(arguments);
        if (!done) return NULL;
        Py_DECREF(done);
    }
    PyObject *false_object = Py_False, *found;
    if ((there = gives(c->acquire, &false_object, 1, Py_True)) < 0) return NULL;
    if (!there) Py_RETURN_NONE;  // another thread is in a call: the program's own code waits for it
    PyObject *few[16], **all = count + c->results <= 16 ? few : PyMem_Malloc((count + c->results) * sizeof(PyObject *));
    if (all) {
        memcpy(all, given, count * sizeof(PyObject *));
        found = made(c, all, tensors);
        if (all != few) PyMem_Free(all);
    } else {
        found = PyErr_NoMemory();
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Py_XDECREF(PyObject_CallNoArgs(c->release));
    PyErr_Restore(type, value, trace);
    if (found && found != Py_None && tensors && c->handed != Py_None) Py_SETREF(found, PyObject_CallOneArg(c->handed, found));
    return found;
}

static PyMethodDef call_method = {
    "host_call", (PyCFunction)(void (*)(void))called, METH_FASTCALL,
    "The results of a call of a CPU program; None where the program's own code has to make it."};

// The Python function of a call, made from a tuple: the objects of `Call` in its order, the address of `steps`, the table's bytes,
// and `places` as bytes.
PyObject *tensor_graphs_host_call(PyObject *given) {
    size_t count;
    Call *c = PyMem_Calloc(1, sizeof *c);
    if (!c) return PyErr_NoMemory();
    PyObject **held = members(c, &count), *capsule = PyCapsule_New(c, "host call", freed);
    if (!capsule) return PyMem_Free(c), NULL;
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != (Py_ssize_t)count + 3) {
        PyErr_SetString(PyExc_TypeError, "a tuple of the members of Call is needed");
        return Py_DECREF(capsule), NULL;
    }
    for (size_t i = 0; i < count; i++) held[i] = Py_NewRef(PyTuple_GET_ITEM(given, i));
    c->steps = (void (*)(void *const *))PyLong_AsVoidPtr(PyTuple_GET_ITEM(given, count));
    PyObject *table = PyTuple_GET_ITEM(given, count + 1), *places = PyTuple_GET_ITEM(given, count + 2);
    c->moving = PyBytes_Size(places) / sizeof(Py_ssize_t), PyBytes_Size(table);
    Py_ssize_t of_arrays = PyTuple_Size(c->of_arrays), of_tensors = PyTuple_Size(c->of_tensors);
    c->inputs = PyTuple_Size(c->types), c->results = of_arrays > of_tensors ? of_arrays : of_tensors;
    if (PyErr_Occurred()) return Py_DECREF(capsule), NULL;
    c->table = PyMem_Malloc(PyBytes_GET_SIZE(table) + 1), c->places = PyMem_Malloc(PyBytes_GET_SIZE(places) + 1);
    if (!c->table || !c->places) return Py_DECREF(capsule), PyErr_NoMemory();
    memcpy(c->table, PyBytes_AS_STRING(table), PyBytes_GET_SIZE(table));
    memcpy(c->places, PyBytes_AS_STRING(places), PyBytes_GET_SIZE(places));
    PyObject *found = PyCFunction_NewEx(&call_method, capsule, NULL);
    Py_DECREF(capsule);
    return found;
}
