"""Writes the C text of recurrent layers: LSTM, GRU and plain cells over all steps, layers and directions.

The input products of all steps are one convolution of 1 x 1 (tiled_products.py). A step then multiplies the hidden
values by the recurrent weights and applies the gates to the sums while these are in registers. A block is 16 hidden
units; weights and input products hold all gates of a block side by side, so a step reads its weights once, in order.
"""

from __future__ import annotations

from collections.abc import Mapping

from .tile_vectors import contracted

BLOCK = 16  # hidden units of a block
PARALLEL = 1 << 17  # multiplications of a step from which it is divided over threads

_LAYERS = """#define RNN_BLOCK @BLOCK@ /* hidden units */
#if TILE_LANES == 16
#define RNN_ROWS 6 /* rows of a batch at a time: 6 x 4 gates of sums are in registers */
#else
#define RNN_ROWS 2
#endif
/* One step of one direction. given: input products and biases, [row][block][gate][16]; w: recurrent weights,
   [block][hidden][gate][16]; inner: biases that only the recurrent products have, [block][16]. before, after: hidden values
   of the previous and of this step, `before_line` and `after_line` floats a row. memory: cell values, [row][hidden]. reset:
   hidden values times a reset gate, [row][hidden]. */
typedef struct {
    float *given;
    const float *w, *inner, *before;
    float *after, *memory, *reset;
    int64_t before_line, after_line;
    int hidden, blocks;
} rnn_step;
/* Rows `row` to before row + R of a block. */
typedef void rnn_kernel(int row, int block, const rnn_step *s);
/* A cell. gates: input products of a hidden unit; inner: whether it has biases of recurrent products; memory: whether it has
   cell values. halves: kernels of each half of a step (the second one is 0 if there is one only), for 1 to RNN_ROWS rows,
   and gates whose recurrent products they compute. */
typedef struct { int gates, inner, memory; struct { rnn_kernel *const *kernels; int gates; } halves[2]; } rnn_cell;
/* Half a step of `ways` directions: every block of every group of rows. */
static inline void rnn_stepped(rnn_kernel *const *kernels, int gates, int batch, int ways, const rnn_step *s)
{
    const int groups = (batch + RNN_ROWS - 1) / RNN_ROWS, blocks = s->blocks, tasks = ways * blocks * groups;
    #pragma omp parallel for schedule(static) if ((int64_t)ways * blocks * RNN_BLOCK * gates * s->hidden * batch >= @PARALLEL@)
    for (int task = 0; task < tasks; task++) {
        const int row = task % groups * RNN_ROWS, there = batch - row < RNN_ROWS ? batch - row : RNN_ROWS;
        kernels[there - 1](row, task / groups % blocks, s + task / groups / blocks);
    }
}
/* Recurrent layers over x[steps][batch][size], with strides step and beside in elements of its first axes. first: states
   [layer * ways][batch][hidden], then those of cell values. out: hidden values of the last layer,
   [steps][batch][ways * hidden], then the last states. w, per layer and direction: weights of the input,
   [block][gate][size][16]; biases, [block][gate][16]; `inner` biases, [block][16]; recurrent weights,
   [block][hidden][gate][16] (of a cell of two halves: of the gates of the first, then of those of the second). room: input
   products of all directions, [steps][batch][block][gate][16]; reset values, [ways][batch][hidden]; zeros, as many as a layer
   has inputs; hidden values of a layer. */
void tiled_recurrent(const rnn_cell *cell, const float *x, const float *first, const float *w, float *out, float *room, int steps,
                     int batch, int size, int step, int beside, int hidden, int layers, int ways)
{
    const int blocks = (hidden + RNN_BLOCK - 1) / RNN_BLOCK, columns = blocks * cell->gates * RNN_BLOCK, wide = ways * hidden;
    const int64_t line = (int64_t)batch * hidden, given = (int64_t)steps * batch * columns, all = (int64_t)steps * batch * wide;
    float *const reset = room + ways * given, *const zeros = reset + ways * line, *const kept = zeros + (size > wide ? size : wide);
    float *const last = out + all, *const memories = last + layers * ways * line;
    if (cell->memory) __builtin_memcpy(memories, first + layers * ways * line, sizeof(float) * (unsigned long)(layers * ways * line));
    for (int layer = 0; layer < layers; layer++) {
        float *const lines = layer == layers - 1 ? out : kept;
        rnn_step both[2];
        if (batch == 1) beside = step; /* pixels at equal distances */
        for (int way = 0; way < ways; way++) {
            const float *const bias = w + (int64_t)columns * size, *const inner = bias + columns;
            tiled_conv(x, w, bias, x, room + way * given, zeros, 1, steps, batch, size, 0, 1, step, beside, steps, batch, columns,
                       1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0);
            w = inner + cell->inner * blocks * RNN_BLOCK;
            both[way] = (rnn_step){.w = w, .inner = inner, .memory = memories + (layer * ways + way) * line,
                                   .reset = reset + way * line, .after_line = wide, .hidden = hidden, .blocks = blocks};
            w += (int64_t)columns * hidden;
        }
        for (int t = 0; t < steps; t++) {
            for (int way = 0; way < ways; way++) {
                rnn_step *const s = both + way;
                const int64_t now = way ? steps - 1 - t : t, before = way ? now + 1 : now - 1;
                s->given = room + way * given + now * batch * columns;
                s->before = t ? lines + before * batch * wide + way * hidden : first + (layer * ways + way) * line;
                s->before_line = t ? wide : hidden;
                s->after = lines + now * batch * wide + way * hidden;
            }
            for (int half = 0; half < 2; half++)
                if (cell->halves[half].kernels) rnn_stepped(cell->halves[half].kernels, cell->halves[half].gates, batch, ways, both);
        }
        for (int way = 0; way < ways; way++)
            for (int row = 0; row < batch; row++)
                __builtin_memcpy(last + (layer * ways + way) * line + (int64_t)row * hidden, both[way].after + (int64_t)row * wide,
                                 sizeof(float) * (unsigned long)hidden);
        x = lines, size = wide, step = batch * wide, beside = wide;
    }
}
"""

_CELLS: Mapping[str, str] = {
    "tiled_lstm": """RNN_GATES(rnn_lstm)
{
    float *const memory = s->memory + (int64_t)row * s->hidden + at;
    const tile_vec entry = tile_sigmoid(RNN_NOW(0) + sums[0]), forget = tile_sigmoid(RNN_NOW(1) + sums[1]);
    const tile_vec c = forget * tile_loaded(memory, count) + entry * tile_tanh(RNN_NOW(2) + sums[2]);
    tile_written(memory, c, count);
    tile_written(RNN_AFTER, tile_sigmoid(RNN_NOW(3) + sums[3]) * tile_tanh(c), count);
}
RNN_KERNELS(rnn_lstm, 4, 4, before, s->before_line, 0)
RNN_FUNCTION(tiled_lstm, 4, 0, 1, {rnn_lstm, 4})""",
    "tiled_gru": """RNN_GATES(rnn_gru)
{
    const tile_vec reset = tile_sigmoid(RNN_NOW(0) + sums[0]), update = tile_sigmoid(RNN_NOW(1) + sums[1]);
    const tile_vec fresh = tile_tanh(RNN_NOW(2) + reset * (sums[2] + tile_loaded(s->inner + at, count)));
    tile_written(RNN_AFTER, fresh + update * (RNN_BEFORE - fresh), count);
}
RNN_KERNELS(rnn_gru, 3, 3, before, s->before_line, 0)
RNN_FUNCTION(tiled_gru, 3, 1, 0, {rnn_gru, 3})""",
    # resets the hidden values before their product: the new value's product is a second half of a step
    "tiled_gru_reset_first": """RNN_GATES(rnn_reset)
{
    tile_written(s->reset + (int64_t)row * s->hidden + at, tile_sigmoid(RNN_NOW(0) + sums[0]) * RNN_BEFORE, count);
    RNN_NOW(1) = tile_sigmoid(RNN_NOW(1) + sums[1]); /* for the second half */
}
RNN_GATES(rnn_fresh)
{
    const tile_vec fresh = tile_tanh(RNN_NOW(2) + sums[0]);
    tile_written(RNN_AFTER, fresh + RNN_NOW(1) * (RNN_BEFORE - fresh), count);
}
RNN_KERNELS(rnn_reset, 2, 3, before, s->before_line, 0)
RNN_KERNELS(rnn_fresh, 1, 3, reset, (int64_t)s->hidden, 2)
RNN_FUNCTION(tiled_gru_reset_first, 3, 0, 0, {rnn_reset, 2}, {rnn_fresh, 1})""",
    "tiled_rnn_tanh": """RNN_GATES(rnn_tanh_cell)
{
    tile_written(RNN_AFTER, tile_tanh(RNN_NOW(0) + sums[0]), count);
}
RNN_KERNELS(rnn_tanh_cell, 1, 1, before, s->before_line, 0)
RNN_FUNCTION(tiled_rnn_tanh, 1, 0, 0, {rnn_tanh_cell, 1})""",
    "tiled_rnn_relu": """RNN_GATES(rnn_relu_cell)
{
    const tile_vec h = RNN_NOW(0) + sums[0];
    tile_written(RNN_AFTER, tile_chosen(h < (tile_vec){0}, (tile_vec){0}, h), count); /* NaN stays */
}
RNN_KERNELS(rnn_relu_cell, 1, 1, before, s->before_line, 0)
RNN_FUNCTION(tiled_rnn_relu, 1, 0, 0, {rnn_relu_cell, 1})""",
}

_MATH = """/* sums[i][g] = h[i][k] * w[k][g][...] over all k, for R rows and G gates. The sums of even and odd k (of k modulo S) are
   separate, so that an addition need not wait for the previous one. */
static inline __attribute__((always_inline)) void rnn_products(int G, int R, int S, const float *const *h, int terms,
                                                               const float *w, tile_vec *sums)
{
    TILE_UNROLLED for (int i = 0; i < R * G; i++) sums[i] = (tile_vec){0};
    for (int begin = 0; begin < terms; begin += TILE_TERMS) {
        const int end = terms - begin < TILE_TERMS ? terms : begin + TILE_TERMS;
        tile_vec part[24];
        TILE_UNROLLED for (int i = 0; i < S * R * G; i++) part[i] = (tile_vec){0};
        int k = begin;
#define RNN_TERM(s) \\
    { \\
        tile_vec v[4]; \\
        TILE_UNROLLED for (int g = 0; g < G; g++) v[g] = *(const tile_vec *)(w + ((s) * G + g) * RNN_BLOCK); \\
        TILE_UNROLLED for (int i = 0; i < R; i++) { \\
            const tile_vec x = TILE_SPLAT(h[i][k + (s)]); \\
            TILE_UNROLLED for (int g = 0; g < G; g++) part[((s) * R + i) * G + g] += x * v[g]; \\
        } \\
    }
        for (; k + S <= end; k += S, w += S * G * RNN_BLOCK) TILE_UNROLLED for (int s = 0; s < S; s++) RNN_TERM(s)
        for (; k < end; k++, w += G * RNN_BLOCK) RNN_TERM(0)
#undef RNN_TERM
        TILE_UNROLLED for (int s = 1; s < S; s++)
            TILE_UNROLLED for (int i = 0; i < R * G; i++) part[i] += part[s * R * G + i];
        TILE_UNROLLED for (int i = 0; i < R * G; i++) sums[i] += part[i];
    }
}
/* Kernels `name` for 1 to RNN_ROWS rows. G: gates whose recurrent products they compute, of `all` gates of the cell; h,
   line: left operand of these products, and floats from row to row; skipped: gates whose weights lie before.
   name_gates(sums, now, row, at, count, s) writes the results of `count` hidden units from unit `at` on. */
#define RNN_KERNEL(name, G, all, h, line, skipped, R) \\
static __attribute__((noinline)) void name##_##R(int row, int block, const rnn_step *s) \\
{ \\
    const float *const w = s->w + (int64_t)RNN_BLOCK * s->hidden * ((skipped) * s->blocks + block * G), *rows[R]; \\
    TILE_UNROLLED for (int i = 0; i < R; i++) rows[i] = s->h + (row + i) * (line); \\
    for (int part = 0; part < RNN_BLOCK; part += TILE_LANES) { \\
        const int at = block * RNN_BLOCK + part, count = s->hidden - at; \\
        tile_vec sums[R * G]; \\
        if (count <= 0) break; \\
        rnn_products(G, R, G * R < 8 ? 8 / (G * R) : 1, rows, s->hidden, w + part, sums); \\
        TILE_UNROLLED for (int i = 0; i < R; i++) \\
            name##_gates(sums + i * G, s->given + ((int64_t)(row + i) * s->blocks + block) * all * RNN_BLOCK + part, row + i, at, \\
                         count, s); \\
    } \\
}
#if RNN_ROWS == 6
#define RNN_KERNELS(name, ...) \\
    RNN_KERNEL(name, __VA_ARGS__, 1) RNN_KERNEL(name, __VA_ARGS__, 2) RNN_KERNEL(name, __VA_ARGS__, 3) \\
    RNN_KERNEL(name, __VA_ARGS__, 4) RNN_KERNEL(name, __VA_ARGS__, 5) RNN_KERNEL(name, __VA_ARGS__, 6) \\
    static rnn_kernel *const name[] = {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6};
#else
#define RNN_KERNELS(name, ...) \\
    RNN_KERNEL(name, __VA_ARGS__, 1) RNN_KERNEL(name, __VA_ARGS__, 2) \\
    static rnn_kernel *const name[] = {name##_1, name##_2};
#endif
#define RNN_GATES(name) static inline __attribute__((always_inline)) void name##_gates(const tile_vec *sums, float *now, int row, \\
                                                                                       int at, int count, const rnn_step *s)
#define RNN_NOW(gate) (*(tile_vec *)(now + (gate) * RNN_BLOCK))
/* Hidden values of the previous step, and the place of those of this one. */
#define RNN_BEFORE tile_loaded(s->before + row * s->before_line + at, count)
#define RNN_AFTER (s->after + row * s->after_line + at)
/* The C function of a cell. */
#define RNN_FUNCTION(name, gates, inner, memory, ...) \\
void name(const float *x, const float *first, const float *w, float *out, float *room, int steps, int batch, int size, int step, \\
          int beside, int hidden, int layers, int ways) \\
{ \\
    static const rnn_cell cell = {gates, inner, memory, {__VA_ARGS__}}; \\
    tiled_recurrent(&cell, x, first, w, out, room, steps, batch, size, step, beside, hidden, layers, ways); \\
}"""


LAYERS = _LAYERS.replace("@BLOCK@", str(BLOCK)).replace("@PARALLEL@", str(PARALLEL)) + contracted(_MATH + "\n")
"""C text that all cells share: the function `tiled_recurrent`, and macros of kernels. It calls functions of
convolutions, whose text precedes it."""

CELLS: Mapping[str, str] = {name: contracted(text + "\n") for name, text in _CELLS.items()}
"""C function of a cell -> its text."""

__all__ = ["BLOCK", "CELLS", "LAYERS", "PARALLEL"]
