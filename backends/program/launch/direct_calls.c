// Calls of a GPU program whose launches are known, as one function of Python: checks the arguments, allocates the
// results, writes the addresses into the launches' parameters, and launches. It returns None, without having launched
// anything, where the program's own code (gpu_calls.py) has to make the call. Compiled by direct_calls.py.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST 2048  // tensors of a call

typedef struct { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned count; } Config;  // CUlaunchConfig
typedef struct { int64_t launch, where, tensor, offset, map; } Slot;  // where the address of a tensor (`map`: its tensor map) is written
typedef struct { int64_t config, function, parameters, node, how; } Launch;  // `node`, `how`: of the executable graph
typedef struct { uint64_t start, stop; } Range;  // memory that inputs must not be in

typedef struct {
    PyObject *calls, *owner, *turn, *acquire, *release, *guard, *address, *device, *stream, *index, *capturing, *mark;
    PyObject *makers, *results;  // tuples; makers: (function, arguments …) that allocates a tensor, None for one in the program's
                                   // memory, False for the caller's (True: only at multiples of 256 bytes), or the
                                   // address that the caller's must have
    Slot *slots;
    Launch *launches;
    Range *ranges;
    Py_ssize_t slot_count, launch_count, range_count, inputs, tensors;
    int reuse;
    int (*launch)(const void *, void *, void **, void **);
    int (*replace)(void *, void *);
    int (*update)(void *, void *, void *);
    int (*run)(void *, void *);
    void *executable;
    PyObject *table;  // list of the call's launches, or weak reference to its executable CUDA graph
    uint64_t last[MOST];
} Call;

static PyObject *last_name, *stream_name, *kernels_name, *table_name, *executable_name, *places_name, *handed_name, *copy_name,
    *clone_name, *copies_name, *view_name;

static void freed(PyObject *capsule) {
    Call *c = PyCapsule_GetPointer(capsule, "direct call");
    PyObject *held[] = {c->calls, c->owner, c->turn, c->acquire, c->release, c->guard, c->address, c->device, c->stream, c->index,
                        c->capturing, c->mark, c->makers, c->results, c->table};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_XDECREF(held[i]);
    free(c->slots), free(c->launches), free(c->ranges), free(c);
}

// 1 if the function's result equals `wanted`, 0 if not, -1 on an error.
static int gives(PyObject *function, PyObject *wanted) {
    PyObject *found = PyObject_CallNoArgs(function);
    if (!found) return -1;
    int same = found == wanted ? 1 : PyObject_RichCompareBool(found, wanted, Py_EQ);
    Py_DECREF(found);
    return same;
}

// 1 if attribute `name` of `object` is the object `wanted`; 0 if not.
static int is(PyObject *object, PyObject *name, PyObject *wanted) {
    PyObject *found = PyObject_GetAttr(object, name);
    if (!found) return PyErr_Clear(), 0;
    Py_DECREF(found);
    return found == wanted;
}

static int address_of(Call *c, PyObject *tensor, uint64_t *where) {
    PyObject *found = PyObject_CallOneArg(c->address, tensor);
    if (!found) return -1;
    *where = PyLong_AsUnsignedLongLong(found);
    Py_DECREF(found);
    return PyErr_Occurred() ? -1 : 0;
}

// 1 if the launches are still those of this call and may be made now, 0 if not, -1 on an error.
static int current(Call *c, PyObject *calls, uint64_t *stream) {
    int there;
    if (c->executable) {
        PyObject *graph = PyObject_CallNoArgs(c->table);  // a weak reference
        if (!graph) return -1;
        int same = is(calls, executable_name, graph);
        Py_DECREF(graph);
        if (!same || graph == Py_None) return 0;
    } else {
        PyObject *kernels = PyObject_GetAttr(calls, kernels_name);
        if (!kernels) return -1;
        int same = is(kernels, table_name, c->table);
        Py_DECREF(kernels);
        if (!same) return 0;
    }
    if ((there = gives(c->device, c->index)) <= 0) return there;
    if (c->capturing != Py_None && (there = gives(c->capturing, Py_False)) <= 0) return there;
    if (c->owner != Py_None && !is(c->owner, last_name, calls) && (there = gives(c->turn, Py_True)) <= 0) return there;
    PyObject *wanted = PyObject_GetAttr(calls, stream_name);
    PyObject *found = wanted ? PyObject_CallOneArg(c->stream, c->index) : NULL;
    there = found ? PyObject_RichCompareBool(found, wanted, Py_EQ) : -1;
    if (there == 1) *stream = PyLong_AsUnsignedLongLong(found);
    Py_XDECREF(wanted), Py_XDECREF(found);
    return PyErr_Occurred() ? -1 : there;
}

// Have all launches use the stream, and tell the program's own code so (`Launches.on`), which otherwise leaves the launches as they
// are for the stream that it set last. All of them have the stream of the first and the last one where these agree: that code sets
// them in order, and an exception (Ctrl-C) may end it in between. -1 on an error.
static int set_stream(Call *c, PyObject *calls, uint64_t stream) {
    Py_ssize_t last = c->launch_count - 1;
    if (last >= 0 && ((Config *)c->launches[0].config)->stream == (void *)stream &&
        ((Config *)c->launches[last].config)->stream == (void *)stream)
        return 0;
    PyObject *kernels = PyObject_GetAttr(calls, kernels_name), *number = PyLong_FromUnsignedLongLong(stream);
    int failed = !kernels || !number || PyObject_SetAttr(kernels, stream_name, number);
    Py_XDECREF(kernels), Py_XDECREF(number);
    for (Py_ssize_t i = 0; !failed && i < c->launch_count; i++) ((Config *)c->launches[i].config)->stream = (void *)stream;
    return -failed;
}

// Launch kernel by kernel: 0, or the driver's code; `made`: number of launches that were made.
static int flat(Call *c, const uint64_t *at, Py_ssize_t *made) {
    int code = 0;
    for (Py_ssize_t i = 0; i < c->slot_count; i++) {
        Slot *s = c->slots + i;
        uint64_t where = at[s->tensor] + s->offset;
        if (!s->map) *(uint64_t *)s->where = where;
        else if ((code = c->replace((void *)s->where, (void *)where))) return code;
    }
    for (*made = 0; *made < c->launch_count; ++*made) {
        Launch *one = c->launches + *made;
        if ((code = c->launch((void *)one->config, (void *)one->function, (void **)one->parameters, NULL))) return code;
    }
    return 0;
}

// Launch the CUDA graph, after updating the nodes whose tensors have moved; `known`: `last` holds the nodes' addresses.
static int replayed(Call *c, const uint64_t *at, void *stream, int known) {
    int code = 0;
    for (Py_ssize_t i = 0; i < c->slot_count;) {
        int64_t node = c->slots[i].launch;
        int changed = 0;
        for (; i < c->slot_count && c->slots[i].launch == node; i++) {
            Slot *s = c->slots + i;
            uint64_t where = at[s->tensor] + s->offset;
            if (known && at[s->tensor] == c->last[s->tensor]) continue;
            changed = 1;
            if (!s->map) *(uint64_t *)s->where = where;
            else if ((code = c->replace((void *)s->where, (void *)where))) return code;
        }
        Launch *one = c->launches + node;
        if (changed && (code = c->update(c->executable, (void *)one->node, (void *)one->how))) return code;
    }
    memcpy(c->last, at, c->tensors * sizeof *at);
    return c->run(c->executable, stream);
}

// Input or result `i` in the program's memory, as a new reference.
static PyObject *place(PyObject *calls, Py_ssize_t i) {
    PyObject *places = PyObject_GetAttr(calls, places_name), *number = PyLong_FromSsize_t(i);
    PyObject *found = places && number ? PyObject_GetItem(places, number) : NULL;
    Py_XDECREF(places), Py_XDECREF(number);
    return found;
}

// The tensor `i` of a call: a new one, the caller's, or memory of the program (for an input: with the caller's values).
static PyObject *tensor(Call *c, PyObject *calls, PyObject *const *given, Py_ssize_t i) {
    PyObject *make = PyTuple_GET_ITEM(c->makers, i), *found;
    if (PyTuple_CheckExact(make))
        return PyObject_Vectorcall(PyTuple_GET_ITEM(make, 0), ((PyTupleObject *)make)->ob_item + 1, PyTuple_GET_SIZE(make) - 1, NULL);
    if (make != Py_None) return Py_NewRef(given[i]);
    if (!(found = place(calls, i)) || i >= c->inputs) return found;
    PyObject *filled = PyObject_CallMethodOneArg(found, copy_name, given[i]);
    Py_DECREF(found);
    return filled;
}

// A result: the number of a tensor of the call, (number of a tensor, shape, strides, offset) of a view, or -1 - n for entry n of
// the list `handed`. `copied`: set to whether it is in the program's memory, which the next call overwrites.
static PyObject *result(Call *c, PyObject *calls, PyObject **tensors, PyObject *what, int *copied) {
    PyObject *found, *whole = PyTuple_CheckExact(what) ? PyTuple_GET_ITEM(what, 0) : what;
    Py_ssize_t number = PyLong_AsSsize_t(whole);
    *copied = !c->reuse;
    if (number < 0) {
        PyObject *handed = PyObject_GetAttr(calls, handed_name), *pair = handed ? PySequence_GetItem(handed, -1 - number) : NULL;
        found = pair ? PySequence_GetItem(pair, 1) : NULL;
        Py_XDECREF(handed), Py_XDECREF(pair);
    } else {
        *copied = PyTuple_GET_ITEM(c->makers, number) == Py_None;
        found = Py_NewRef(tensors[number]);
        if (whole != what) {
            PyObject *method = PyObject_GetAttr(found, view_name), *how = method ? PyTuple_GetSlice(what, 1, 4) : NULL;
            Py_SETREF(found, how ? PyObject_Call(method, how, NULL) : NULL);
            Py_XDECREF(method), Py_XDECREF(how);
        }
    }
    return found;
}

// The results `found` with copies of those at the indices `numbers` (list): several in one launch (`Calls.copies`), which a program
// saved by an older version lacks.
static PyObject *with_copies(PyObject *calls, PyObject *found, PyObject *numbers) {
    PyObject *copies = PyObject_GetAttr(calls, copies_name), *made = NULL;
    if (copies) {
        made = PyObject_CallFunctionObjArgs(copies, found, numbers, NULL);
        Py_DECREF(copies);
    } else {
        PyErr_Clear();
        made = Py_NewRef(found);
        for (Py_ssize_t i = 0; made && i < PyList_GET_SIZE(numbers); i++) {
            Py_ssize_t at = PyLong_AsSsize_t(PyList_GET_ITEM(numbers, i));
            PyObject *copy = PyObject_CallMethodNoArgs(PyTuple_GET_ITEM(made, at), clone_name);
            if (!copy) Py_CLEAR(made);
            else {
                Py_DECREF(PyTuple_GET_ITEM(made, at));
                PyTuple_SET_ITEM(made, at, copy);
            }
        }
    }
    return made;
}

static PyObject *results_of(Call *c, PyObject *calls, PyObject **tensors) {
    Py_ssize_t count = PyTuple_GET_SIZE(c->results);
    PyObject *found = PyTuple_New(count), *numbers = NULL;  // `numbers`: of the results to copy
    for (Py_ssize_t i = 0; found && i < count; i++) {
        int copied;
        PyObject *one = result(c, calls, tensors, PyTuple_GET_ITEM(c->results, i), &copied), *at = NULL;
        if (one) PyTuple_SET_ITEM(found, i, one);
        if (!one || (copied && ((!numbers && !(numbers = PyList_New(0))) || !(at = PyLong_FromSsize_t(i)) || PyList_Append(numbers, at))))
            Py_CLEAR(found);
        Py_XDECREF(at);
    }
    if (found && numbers) Py_SETREF(found, with_copies(calls, found, numbers));
    Py_XDECREF(numbers);
    return found;
}

static PyObject *made(Call *c, PyObject *calls, PyObject *const *given) {
    PyObject *tensors[MOST], *found = NULL;
    uint64_t at[MOST], stream = 0;
    Py_ssize_t count = 0, launched = 0;
    int holds = current(c, calls, &stream);
    if (holds <= 0) return holds ? NULL : Py_NewRef(Py_None);
    for (Py_ssize_t i = 0; i < c->inputs; i++) {
        if (address_of(c, given[i], at + i)) return NULL;
        PyObject *pinned = PyTuple_GET_ITEM(c->makers, i);
        // 15: with the guard and the ranges below, what `Calls.fits` requires
        if (at[i] & (pinned == Py_True ? 255 : 15)) return Py_NewRef(Py_None);
        if (PyLong_CheckExact(pinned) && PyLong_AsUnsignedLongLong(pinned) != at[i]) return Py_NewRef(Py_None);
        for (Py_ssize_t k = 0; k < c->range_count; k++)
            if (at[i] >= c->ranges[k].start && at[i] < c->ranges[k].stop) return Py_NewRef(Py_None);
    }
    while (count < c->tensors) {
        if (!(tensors[count] = tensor(c, calls, given, count))) goto end;
        count++;
        if (count > c->inputs && address_of(c, tensors[count - 1], at + count - 1)) goto end;
    }
    int code, known = c->executable && is(calls, last_name, c->mark);
    if (c->executable && !known && PyObject_SetAttr(calls, last_name, c->mark)) goto end;
    if (!c->executable && set_stream(c, calls, stream)) goto end;
    PyThreadState *state = PyEval_SaveThread();
    code = c->executable ? replayed(c, at, (void *)stream, known) : flat(c, at, &launched);
    PyEval_RestoreThread(state);
    if (code && c->executable) PyObject_SetAttr(calls, last_name, Py_None);
    if (!code) found = results_of(c, calls, tensors);
    else if (!launched) found = Py_NewRef(Py_None);  // the emitted code repeats the call, or raises its error
    else PyErr_Format(PyExc_RuntimeError, "CUDA error: cuLaunchKernelEx failed with code %d", code);
end:
    while (count) Py_DECREF(tensors[--count]);
    return found;
}

static PyObject *called(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    Call *c = PyCapsule_GetPointer(self, "direct call");
    if (!c) return NULL;
    if (count != c->inputs) Py_RETURN_NONE;
    if (count) {
        PyObject *fits = PyObject_Vectorcall(c->guard, given, count, NULL);
        if (!fits) return NULL;
        Py_DECREF(fits);
        if (fits != Py_True) Py_RETURN_NONE;
    }
    PyObject *calls = PyObject_CallNoArgs(c->calls);  // a weak reference
    if (!calls || calls == Py_None) return calls;
    PyObject *free_now = PyObject_CallOneArg(c->acquire, Py_False), *found = NULL;
    if (free_now) {
        Py_DECREF(free_now);
        if (free_now == Py_True) {
            found = made(c, calls, given);
            PyObject *type, *value, *trace;
            PyErr_Fetch(&type, &value, &trace);
            Py_XDECREF(PyObject_CallNoArgs(c->release));
            PyErr_Restore(type, value, trace);
        } else {
            found = Py_NewRef(Py_None);
        }
    }
    Py_DECREF(calls);
    return found;
}

static PyMethodDef call_method = {
    "direct_call", (PyCFunction)(void (*)(void))called, METH_FASTCALL,
    "The results of a call of a GPU program as a tuple; None where the program's own code has to make it."};

static void *copy_of(const char *bytes, Py_ssize_t size, size_t each, Py_ssize_t *count) {
    void *found = malloc(size + 1);
    if (found) memcpy(found, bytes, size);
    *count = size / each;
    return found;
}

// The Python function of a call, made from a tuple of the members of `Call` (see direct_calls.py).
PyObject *tensor_graphs_direct_call(PyObject *given) {
    const char *slots, *launches, *ranges;
    Py_ssize_t sizes[3];
    unsigned long long functions[4], executable;
    struct { PyObject **name; const char *text; } names[] = {
        {&last_name, "last"}, {&stream_name, "stream"}, {&kernels_name, "kernels"}, {&table_name, "table"},
        {&executable_name, "executable"}, {&places_name, "places"}, {&handed_name, "handed"}, {&copy_name, "copy_"},
        {&clone_name, "clone"}, {&copies_name, "copies"}, {&view_name, "as_strided"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!*names[i].name && !(*names[i].name = PyUnicode_InternFromString(names[i].text))) return NULL;
    Call *c = calloc(1, sizeof *c);
    if (!c) return PyErr_NoMemory();
    if (!PyArg_ParseTuple(given, "OOOOOOOOOOOOOOOy#y#y#npKKKKK", &c->calls, &c->owner, &c->turn, &c->acquire, &c->release, &c->guard,
                          &c->address, &c->device, &c->stream, &c->index, &c->capturing, &c->mark, &c->makers,
                          &c->results, &c->table, &slots, sizes, &launches, sizes + 1, &ranges, sizes + 2, &c->inputs, &c->reuse, functions,
                          functions + 1, functions + 2, functions + 3, &executable)) return free(c), NULL;
    PyObject *held[] = {c->calls, c->owner, c->turn, c->acquire, c->release, c->guard, c->address, c->device, c->stream, c->index,
                        c->capturing, c->mark, c->makers, c->results, c->table};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_INCREF(held[i]);
    c->slots = copy_of(slots, sizes[0], sizeof *c->slots, &c->slot_count);
    c->launches = copy_of(launches, sizes[1], sizeof *c->launches, &c->launch_count);
    c->ranges = copy_of(ranges, sizes[2], sizeof *c->ranges, &c->range_count);
    c->launch = (void *)functions[0], c->replace = (void *)functions[1];
    c->update = (void *)functions[2], c->run = (void *)functions[3], c->executable = (void *)executable;
    c->tensors = PyTuple_GET_SIZE(c->makers);
    PyObject *capsule = PyCapsule_New(c, "direct call", freed);
    PyObject *found = capsule ? PyCFunction_NewEx(&call_method, capsule, NULL) : NULL;
    Py_XDECREF(capsule);
    return found;
}

// ---------------------------------------------------------------- launches whose parameters depend on sizes
typedef struct { int64_t kind, start, base, value, offset; } Field;  // kind 0: address, 1 or 2: integer of 4 or 8 bytes
typedef struct { int64_t function, attributes, block[3], shared, early, grid[3]; } Shape;  // grid: index of an integer, or -number
// Tensor map of a matrix: `rows`, `columns` and `apart` (elements from row to row) are an index of an integer or -number, `block`
// is the box; `swizzle`, `type` and `promotion` are the driver's.
typedef struct { int64_t start, base, value, offset, rows, columns, apart, block[2], swizzle, itemsize, type, promotion; } Box;
typedef struct {
    Config config;
    void *function, **parameters;
    char *memory;
    Field *fields;
    Box *boxes;
    Py_ssize_t count, box_count;
    int64_t grid[3];
} Sized;
// cuTensorMapEncodeTiled: map, type, rank, address, sizes, bytes from row to row, box, steps, interleave, swizzle, promotion, fill
typedef int (*Encode)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int,
                      int, int, int);

typedef struct {
    PyObject *address, *held;
    Sized *launches;
    Py_ssize_t count;
    int (*launch)(const void *, void *, void **, void **);
    int (*attach)(void *);
    Encode encode;
    void *context;
} Sequence;

static void freed_sequence(PyObject *capsule) {
    Sequence *q = PyCapsule_GetPointer(capsule, "sized launches");
    for (Py_ssize_t i = 0; i < q->count; i++) {
        Sized *one = q->launches + i;
        free(one->memory), free(one->parameters), free(one->fields), free(one->boxes);
    }
    Py_XDECREF(q->address), Py_XDECREF(q->held);
    free(q->launches), free(q);
}

static int64_t number(const int64_t *values, int64_t what) { return what < 0 ? -what : values[what]; }

// Write a tensor map; 0 where there is none for these sizes.
static int encoded(Sequence *q, Sized *one, const Box *b, const int64_t *values, const uint64_t *bases) {
    uint64_t where = b->offset + (b->value < 0 ? 0 : values[b->value]) + (b->base < 0 ? 0 : bases[b->base]);
    int64_t rows = number(values, b->rows), columns = number(values, b->columns), apart = number(values, b->apart);
    if (!q->encode || rows < 1 || columns < 1 || apart < 1) return 0;
    uint64_t sizes[2] = {(uint64_t)columns, (uint64_t)rows}, steps[1] = {(uint64_t)b->itemsize * (uint64_t)apart};
    uint32_t block[2] = {(uint32_t)b->block[1], (uint32_t)b->block[0]}, ones[2] = {1, 1};
    return !q->encode(one->memory + b->start, (int)b->type, 2, (void *)where, sizes, steps, block, ones, 0, (int)b->swizzle,
                      (int)b->promotion, 0);  // no interleaving, zeros outside
}

// Write the parameters of a launch; 0 where the kernel needs another variant, for other alignments or larger integers.
static int written(Sequence *q, Sized *one, const int64_t *values, const uint64_t *bases) {
    for (Py_ssize_t i = 0; i < one->count; i++) {
        Field *f = one->fields + i;
        int64_t value = f->offset + (f->value < 0 ? 0 : values[f->value]);
        if (f->kind == 1) {
            if (value != (int32_t)value) return 0;
            *(int32_t *)(one->memory + f->start) = (int32_t)value;
        } else {
            if (f->kind == 0 && (value += f->base < 0 ? 0 : (int64_t)bases[f->base]) & 15) return 0;
            *(int64_t *)(one->memory + f->start) = value;
        }
    }
    for (Py_ssize_t i = 0; i < one->box_count; i++)
        if (!encoded(q, one, one->boxes + i, values, bases)) return 0;
    for (int k = 0; k < 3; k++) {
        int64_t blocks = number(values, one->grid[k]);
        if (blocks < 1 || blocks > INT32_MAX) return 0;
        one->config.grid[k] = (unsigned)blocks;
    }
    return 1;
}

// sized_launches(stream, (integers), tensors …): whether the launches were made; if not, none was.
static PyObject *launched_sizes(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    Sequence *q = PyCapsule_GetPointer(self, "sized launches");
    int64_t values[4 * MOST];
    uint64_t bases[MOST];
    if (!q) return NULL;
    if (count < 2 || count > MOST || !PyTuple_CheckExact(given[1]) || PyTuple_GET_SIZE(given[1]) > 4 * MOST)
        return PyErr_SetString(PyExc_TypeError, "stream, integers and tensors are needed"), NULL;
    uint64_t stream = PyLong_AsUnsignedLongLong(given[0]);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given[1]); i++) values[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(given[1], i));
    if (PyErr_Occurred()) return NULL;
    for (Py_ssize_t i = 2; i < count; i++) {
        PyObject *found = PyObject_CallOneArg(q->address, given[i]);
        if (!found) return NULL;
        bases[i - 2] = PyLong_AsUnsignedLongLong(found);
        Py_DECREF(found);
    }
    if (PyErr_Occurred()) return NULL;
    for (Py_ssize_t i = 0; i < q->count; i++)
        if (!written(q, q->launches + i, values, bases)) Py_RETURN_FALSE;
    int code = 0;
    PyThreadState *state = PyEval_SaveThread();
    for (Py_ssize_t i = 0; !code && i < q->count; i++) {
        Sized *one = q->launches + i;
        one->config.stream = (void *)stream;
        code = q->launch(&one->config, one->function, one->parameters, NULL);
        if (code == 201 && !q->attach(q->context)) code = q->launch(&one->config, one->function, one->parameters, NULL);
    }
    PyEval_RestoreThread(state);
    if (code) return PyErr_Format(PyExc_RuntimeError, "CUDA error: cuLaunchKernelEx failed with code %d", code);
    Py_RETURN_TRUE;
}

static PyMethodDef sizes_method = {
    "sized_launches", (PyCFunction)(void (*)(void))launched_sizes, METH_FASTCALL,
    "Make launches for integers and tensors: (stream, integers, tensors …) -> whether they were made."};

// The function of a sequence of launches, from (function that gives an address, objects to hold, launches, cuLaunchKernelEx,
// cuCtxSetCurrent, cuTensorMapEncodeTiled, context); a launch is (`Shape`, memory of the parameters, their offsets, `Field`s,
// `Box`es) as bytes.
PyObject *tensor_graphs_sized_launches(PyObject *given) {
    unsigned long long launch, attach, encode, context;
    PyObject *address, *held, *launches;
    if (!PyArg_ParseTuple(given, "OOO!KKKK", &address, &held, &PyTuple_Type, &launches, &launch, &attach, &encode, &context))
        return NULL;
    Sequence *q = calloc(1, sizeof *q);
    Py_ssize_t count = PyTuple_GET_SIZE(launches);
    if (!q || !(q->launches = calloc(count + 1, sizeof *q->launches))) return free(q), PyErr_NoMemory();
    q->address = Py_NewRef(address), q->held = Py_NewRef(held);
    q->launch = (void *)launch, q->attach = (void *)attach, q->encode = (Encode)encode, q->context = (void *)context;
    PyObject *capsule = PyCapsule_New(q, "sized launches", freed_sequence);
    for (q->count = 0; capsule && q->count < count;) {
        const char *shape, *memory, *starts, *fields, *boxes;
        Py_ssize_t sizes[5];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(launches, q->count), "y#y#y#y#y#", &shape, sizes, &memory, sizes + 1, &starts,
                              sizes + 2, &fields, sizes + 3, &boxes, sizes + 4)) {
            Py_CLEAR(capsule);
            break;
        }
        Sized *one = q->launches + q->count++;
        Shape s;
        memcpy(&s, shape, sizeof s);
        one->memory = aligned_alloc(64, (sizes[1] + 127) / 64 * 64);  // tensor maps need this alignment
        one->parameters = calloc(sizes[2] / 8 + 1, sizeof(void *));
        one->fields = copy_of(fields, sizes[3], sizeof(Field), &one->count);
        one->boxes = copy_of(boxes, sizes[4], sizeof(Box), &one->box_count);
        memcpy(one->memory, memory, sizes[1]);
        for (Py_ssize_t i = 0; i < sizes[2] / 8; i++) one->parameters[i] = one->memory + ((const int64_t *)starts)[i];
        one->function = (void *)s.function;
        one->config = (Config){{1, 1, 1}, {(unsigned)s.block[0], (unsigned)s.block[1], (unsigned)s.block[2]}, (unsigned)s.shared, NULL,
                               (void *)s.attributes, (unsigned)s.early};
        memcpy(one->grid, s.grid, sizeof one->grid);
    }
    PyObject *found = capsule ? PyCFunction_NewEx(&sizes_method, capsule, NULL) : NULL;
    Py_XDECREF(capsule);
    return found;
}
