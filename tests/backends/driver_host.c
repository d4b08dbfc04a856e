// The functions of the CUDA driver that programs call, on the host: a stream that is captured becomes a graph of copied launches.
#include <stdlib.h>
#include <string.h>

#define MOST 8
typedef struct { void (*run)(void **); int count; size_t offset[MOST], size[MOST]; } Function;
typedef struct {
    Function *function; unsigned grid[3], block[3], shared; void **parameters, **extra; void *kernel, *context;
} Params;
typedef struct { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned count; } Config;
typedef struct { Params how; void *places[MOST]; char values[MOST][128], recorded[MOST][128]; } Node;
typedef struct { Node *nodes[1024]; size_t count; } Graph;

static Graph *captured;
static int has_context = 1;
int launches, updates, early;

static void filled(Node *node, const Params *how) {
    node->how = *how;
    node->how.parameters = node->places;
    for (int i = 0; i < how->function->count; i++) {
        node->places[i] = node->values[i];
        memcpy(node->values[i], how->parameters[i], how->function->size[i]);
    }
}

static void add_run(void **p) {
    float *a = *(float **)p[0], *b = *(float **)p[1], *out = *(float **)p[2];
    for (int i = 0; i < *(int *)p[3]; i++) out[i] = a[i] + b[i];
}
static void twice_run(void **p) {  // out, the tensor map of x, count
    float *out = *(float **)p[0], *x = *(float **)p[1];
    for (int i = 0; i < *(int *)p[2]; i++) out[i] = 2 * x[i];
}
static void doubled_run(void **p) { twice_run((void *[]){p[0], p[2], p[1]}); }  // out, count, the tensor map of x
static void described_run(void **p) {  // out, the tensor map of x, rows, columns, their strides, count
    const long long *map = p[1], rows = *(int *)p[2], columns = *(int *)p[3], step = *(long long *)p[4];
    float *out = *(float **)p[0], *x = (float *)map[0];
    int right = map[1] == columns && map[2] == rows && map[3] == 4 * step && *(long long *)p[5] == 1;
    for (int i = 0; i < *(int *)p[6]; i++) out[i] = right ? 2 * x[i] : 0;
}
Function described = {described_run, 7, {0, 64, 192, 196, 200, 208, 216}, {8, 128, 4, 4, 8, 8, 4}};
Function doubled = {doubled_run, 3, {0, 8, 64}, {8, 4, 128}};
Function add = {add_run, 4, {0, 8, 16, 24}, {8, 8, 8, 4}}, twice = {twice_run, 3, {0, 64, 192}, {8, 128, 4}};

void begin_capture(void) { captured = calloc(1, sizeof *captured); }
Graph *end_capture(void) { Graph *found = captured; captured = NULL; return found; }
static int fails_after = -1;  // launches until one fails
void lose_context(void) { has_context = 0; }
void fail_launch(int number) { fails_after = number; }

int cuCtxGetCurrent(void **context) { *context = &has_context; return 0; }
int cuCtxSetCurrent(void *context) { has_context = context == &has_context; return !has_context; }
int cuStreamGetCaptureInfo_v3(void *stream, int *status, unsigned long long *id, void **graph, Node ***nodes, void **edges, size_t *count) {
    *status = captured != NULL;
    if (captured) *graph = captured, *nodes = captured->nodes + captured->count - 1, *count = captured->count > 0;
    return 0;
}
int cuGraphKernelNodeGetParams_v2(Node *node, Params *how) { *how = node->how; return 0; }
int cuFuncGetParamInfo(Function *function, size_t i, size_t *offset, size_t *size) {
    if (i >= (size_t)function->count) return 1;
    *offset = function->offset[i], *size = function->size[i];
    return 0;
}
int cuFuncGetAttribute(int *value, int what, Function *function) { *value = 0; return 0; }
int cuLaunchKernelEx(const Config *config, Function *function, void **parameters, void **extra) {
    if (!has_context) return 201;
    if (fails_after >= 0 && fails_after-- == 1) return 700;
    early += config->count && *(int *)config->attributes == 6;
    Params how = {.function = function, .parameters = parameters};
    if (captured) {
        Node *node = captured->nodes[captured->count++] = calloc(1, sizeof(Node));
        filled(node, &how);
        memcpy(node->recorded, node->values, sizeof node->values);
    } else function->run(parameters), launches++;
    return 0;
}
int cuGraphGetNodes(Graph *graph, Node **nodes, size_t *count) {
    *count = graph->count;
    if (nodes) memcpy(nodes, graph->nodes, graph->count * sizeof *nodes);
    return 0;
}
int cuGraphNodeGetType(Node *node, int *kind) { *kind = 0; return 0; }
int cuGraphInstantiateWithFlags(Graph **made, Graph *graph, unsigned long long flags) {
    for (size_t i = 0; i < graph->count; i++) memcpy(graph->nodes[i]->values, graph->nodes[i]->recorded, sizeof graph->nodes[i]->values);
    *made = graph;
    return 0;
}
int cuGraphExecKernelNodeSetParams_v2(Graph *graph, Node *node, const Params *how) { filled(node, how); updates++; return 0; }
int cuGraphLaunch(Graph *graph, void *stream) {
    if (!has_context) return 201;
    for (size_t i = 0; i < graph->count; i++) graph->nodes[i]->how.function->run(graph->nodes[i]->places);
    return 0;
}
int cuGraphExecDestroy(Graph *graph) { return 0; }
static int refuses;
void fail_encode(int fails) { refuses = fails; }
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const unsigned long long *sizes,
                           const unsigned long long *steps, const unsigned *box, const unsigned *ones, int interleave, int swizzle,
                           int promotion, int fill) {
    if (refuses || (size_t)map & 63 || (size_t)address & 15 || (type != 1 && type != 7) || rank != 2 || ones[0] != 1 || ones[1] != 1) return 1;
    long long facts[] = {(long long)address, sizes[0], sizes[1], steps[0], box[0], box[1], interleave, swizzle, promotion, fill};
    memcpy(map, facts, sizeof facts);
    return 0;
}
int cuTensorMapReplaceAddress(void **map, void *address) { *map = address; return 0; }
int cuModuleLoadData(Function **module, const char *image) {
    *module = !strcmp(image, "add") ? &add : !strcmp(image, "described") ? &described : &twice;
    return 0;
}
int cuModuleGetFunction(Function **found, Function *module, const char *name) { *found = module; return 0; }
int cuModuleUnload(Function *module) { return 0; }
