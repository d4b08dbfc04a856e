/* A decode step of Qwen2-0.5B in ggml, the library below llama.cpp: 24 layers, random weights, after 512 of 1024 positions.
 *
 * Built and called by cpu.py with --ggml FOLDER (llama.cpp's source with its build in FOLDER/b/bin). Weights lie in the
 * repacked buffers that llama.cpp uses on a CPU where the form has one; caches are float16, attention is flash_attn_ext over
 * 768 positions (llama.cpp rounds 513 up to a multiple of 256). */
#include <stdlib.h>
#include <string.h>
#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"

enum { HIDDEN = 896, HEADS = 14, KV = 2, SIZE = 64, FFN = 4864, VOCAB = 151936, ROOM = 1024, SEEN = 768, AT = 512 };
typedef struct ggml_tensor *T;
typedef struct { struct ggml_cgraph *graph; ggml_backend_t backend; } Step;

static T weight(struct ggml_context *c, enum ggml_type kind, int rows, int columns) { return ggml_new_tensor_2d(c, kind, columns, rows); }
static struct ggml_context *context(size_t tensors)
{
    struct ggml_init_params p = {ggml_tensor_overhead() * tensors + ggml_graph_overhead_custom(4096, false), NULL, true};
    return ggml_init(p);
}

/* Blocks of random numbers, quantized once and repeated. */
static void fill(struct ggml_context *c)
{
    enum { ROWS = 16 };
    for (T t = ggml_get_first_tensor(c); t; t = ggml_get_next_tensor(c, t)) {
        long columns = t->ne[0], rows = ggml_nrows(t), count = rows < ROWS ? rows : ROWS;
        float *x = malloc(sizeof(float) * columns * count);
        for (long i = 0; i < columns * count; i++) x[i] = (rand() / (float)RAND_MAX - 0.5f) * 0.07f;
        size_t size = ggml_row_size(t->type, columns);
        char *all = malloc(size * rows);
        if (t->type == GGML_TYPE_F32) memcpy(all, x, size * count);
        else ggml_quantize_chunk(t->type, x, all, 0, count, columns, NULL);
        for (long r = count; r < rows; r++) memcpy(all + r * size, all + r % count * size, size);
        ggml_backend_tensor_set(t, all, 0, size * rows);
        free(all);
        free(x);
    }
}

static ggml_backend_buffer_type_t repacked(enum ggml_type kind)
{
    ggml_backend_dev_t dev = ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);
    ggml_backend_dev_get_extra_bufts_t get =
        (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(ggml_backend_cpu_reg(), "ggml_backend_dev_get_extra_bufts");
    if (kind == GGML_TYPE_Q4_0 && get)
        for (ggml_backend_buffer_type_t *b = get(dev); b && *b; b++)
            if (strstr(ggml_backend_buft_name(*b), "REPACK")) return *b;
    return ggml_backend_cpu_buffer_type();
}

static void quiet(enum ggml_log_level level, const char *text, void *data) { (void)level, (void)text, (void)data; }

Step *step_make(int kind, int layers, int threads)
{
    ggml_log_set(quiet, NULL);
    struct ggml_context *w = context(8 * layers + 8), *f = context(16 * layers + 32), *g = context(64 * layers + 64);
    T mats[64][7], head = weight(w, kind, VOCAB, HIDDEN);
    const int shapes[7][2] = {{HIDDEN, HIDDEN}, {KV * SIZE, HIDDEN}, {KV * SIZE, HIDDEN}, {HIDDEN, HIDDEN}, {FFN, HIDDEN}, {FFN, HIDDEN}, {HIDDEN, FFN}};
    for (int i = 0; i < layers; i++)
        for (int k = 0; k < 7; k++) mats[i][k] = weight(w, kind, shapes[k][0], shapes[k][1]);
    T gain = ggml_new_tensor_1d(f, GGML_TYPE_F32, HIDDEN), bias = ggml_new_tensor_1d(f, GGML_TYPE_F32, HIDDEN);
    T small = ggml_new_tensor_1d(f, GGML_TYPE_F32, KV * SIZE), x = ggml_new_tensor_2d(f, GGML_TYPE_F32, HIDDEN, 1);
    T mask = ggml_new_tensor_2d(f, GGML_TYPE_F16, SEEN, 64), caches[64][2];
    for (int i = 0; i < layers; i++)
        for (int k = 0; k < 2; k++) caches[i][k] = ggml_new_tensor_2d(f, GGML_TYPE_F16, KV * SIZE, ROOM);
    struct ggml_context *n = context(4);
    T at = ggml_new_tensor_1d(n, GGML_TYPE_I32, 1);
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, threads);
    if (!ggml_backend_alloc_ctx_tensors_from_buft(w, repacked(kind)) || !ggml_backend_alloc_ctx_tensors(f, backend)) return NULL;
    ggml_backend_alloc_ctx_tensors(n, backend);
    int place = AT;
    ggml_backend_tensor_set(at, &place, 0, sizeof place);
    fill(w);
    fill(f);

    struct ggml_cgraph *graph = ggml_new_graph_custom(g, 4096, false);
    T y = x;
    for (int i = 0; i < layers; i++) {
        T normed = ggml_mul(g, ggml_rms_norm(g, y, 1e-6f), gain);
        T q = ggml_add(g, ggml_mul_mat(g, mats[i][0], normed), bias);
        T k = ggml_add(g, ggml_mul_mat(g, mats[i][1], normed), small), v = ggml_add(g, ggml_mul_mat(g, mats[i][2], normed), small);
        q = ggml_rope_ext(g, ggml_reshape_3d(g, q, SIZE, HEADS, 1), at, NULL, SIZE, GGML_ROPE_TYPE_NEOX, 32768, 1e6f, 1, 0, 1, 32, 1);
        k = ggml_rope_ext(g, ggml_reshape_3d(g, k, SIZE, KV, 1), at, NULL, SIZE, GGML_ROPE_TYPE_NEOX, 32768, 1e6f, 1, 0, 1, 32, 1);
        T parts[2] = {ggml_reshape_2d(g, k, KV * SIZE, 1), v}, seen[2];
        for (int c = 0; c < 2; c++) {
            T cache = caches[i][c];
            ggml_build_forward_expand(graph, ggml_cpy(g, parts[c], ggml_view_2d(g, cache, KV * SIZE, 1, cache->nb[1], AT * cache->nb[1])));
            seen[c] = ggml_view_3d(g, cache, SIZE, SEEN, KV, cache->nb[1], SIZE * sizeof(ggml_fp16_t), 0);
        }
        T att = ggml_flash_attn_ext(g, ggml_permute(g, q, 0, 2, 1, 3), seen[0], seen[1], mask, 0.125f, 0, 0);
        y = ggml_add(g, y, ggml_mul_mat(g, mats[i][3], ggml_reshape_2d(g, att, HIDDEN, 1)));
        normed = ggml_mul(g, ggml_rms_norm(g, y, 1e-6f), gain);
        T inside = ggml_swiglu_split(g, ggml_mul_mat(g, mats[i][4], normed), ggml_mul_mat(g, mats[i][5], normed));
        y = ggml_add(g, y, ggml_mul_mat(g, mats[i][6], inside));
    }
    ggml_build_forward_expand(graph, ggml_mul_mat(g, head, ggml_mul(g, ggml_rms_norm(g, y, 1e-6f), gain)));
    ggml_gallocr_t room = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
    if (!ggml_gallocr_alloc_graph(room, graph)) return NULL;
    Step *made = malloc(sizeof *made);
    *made = (Step){graph, backend};
    return made;
}

int step_run(Step *step) { return ggml_backend_graph_compute(step->backend, step->graph); }
