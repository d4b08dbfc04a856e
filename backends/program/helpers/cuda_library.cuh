// Common functions of generated kernels, in plain C++ over cuda_intrinsics.cuh.
#ifndef BYTES
#define BYTES 16  // alignment of all pointers
#endif

DEVICE constexpr int least(int a, int b) { return a < b ? a : b; }

// Vector of N contiguous elements, moved by as few instructions as the pointers' alignment allows.
template <class T, int N> struct alignas(sizeof(T) * N < BYTES ? sizeof(T) * N : (sizeof(T) < BYTES ? BYTES : sizeof(T))) Pack {
    T at[N];
};
template <int N, class T> DEVICE Pack<T, N> read(const T* x) { return *reinterpret_cast<const Pack<T, N>*>(x); }
template <int N, class T> DEVICE void write(T* x, Pack<T, N> value) { *reinterpret_cast<Pack<T, N>*>(x) = value; }
template <int N> DEVICE Pack<float, N> read_recent(const float* x) {
    Pack<float, N> found;
    if constexpr (BYTES >= 16 && N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) recent_word(found.at + i, x + i);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) found.at[i] = recent(x + i);
    }
    return found;
}

// Copy of a vector to shared memory: by cp.async, or through registers where the alignment does not permit that.
template <class T, int N> DEVICE void fetch(Pack<T, N>& to, const T* from) {
    if constexpr (BYTES >= 16) fetch_word(to, from);
    else to = read<N>(from);
}

// Such copies into slots of 16 bytes of a ring buffer: codes of quantized weights, with a prefetch of their line of 128 bytes; 8 elements
// of a row, which other blocks read as well; the aligned word that contains a 16-bit value.
typedef Pack<unsigned char, 16> Slot;
DEVICE void fetch_codes(Slot& to, const unsigned char* from) {
    if constexpr (BYTES >= 16) fetch_line(to, from);
    else to = read<16>(from);
}
template <class T> DEVICE void fetch_row(Slot& to, const T* from) {
    if constexpr (BYTES >= 16) fetch_near<16>(&to, from);
    else reinterpret_cast<Pack<T, 8>&>(to) = read<8>(from);
}
template <class T> DEVICE void fetch_pair(unsigned& to, const T* from) {
    fetch_near<4>(&to, reinterpret_cast<const unsigned*>(reinterpret_cast<unsigned long long>(from) & ~3ull));
}
// Reads of these slots, word by word.
template <class T, int N> DEVICE void read_slot(Pack<T, N>& to, const Slot& from) {
    const Pack<unsigned, 4> words = *reinterpret_cast<const Pack<unsigned, 4>*>(&from);
#pragma unroll
    for (int i = 0; i < 4; ++i) reinterpret_cast<unsigned*>(&to)[i] = words.at[i];
}
template <class T> DEVICE T half_of(unsigned pair, const T* from, int at) {  // the value from[at], which is one half of `pair`
    const bool high = BYTES >= 4 ? at & 1 : reinterpret_cast<unsigned long long>(from + at) & 2;
    T x;
    x.bits = (unsigned short)(high ? pair >> 16 : pair);
    return x;
}
// Index of vector `i` (of N) of a row in a ring buffer of ROWS rows, swizzled so that threads that read two rows at once use different banks.
template <int ROWS, int N> DEVICE int row_place(int row, int i) {
    return row * N + (ROWS == 1 ? i : N == 16 ? i ^ (i >> 2) ^ (row & 1) << 2 : i ^ (row & 1));
}

// Load of a vector that this block does not read again.
template <int N, class T> DEVICE Pack<T, N> read_once(const T* x) {
    if constexpr (BYTES >= 16 && N * sizeof(T) == 16) {
        Pack<T, N> found;
        read_past(found, x);
        return found;
    } else {
        return read<N>(x);
    }
}

// Load of a vector within bounds (`there`); else zeros, after a load from the valid address `good`, so that no branch is needed.
template <class T, int N> DEVICE Pack<T, N> only_if(bool there, Pack<T, N> x) {
    unsigned* words = reinterpret_cast<unsigned*>(&x);
#pragma unroll
    for (int i = 0; i < N * sizeof(T) / 4; ++i) words[i] = there ? words[i] : 0;
    return x;
}
template <int N, class T> DEVICE Pack<T, N> read_if(bool there, const T* x, const T* good) {
    return only_if(there, read<N>(there ? x : good));
}
template <int N, class T> DEVICE Pack<T, N> read_once_if(bool there, const T* x, const T* good) {
    return only_if(there, read_once<N>(there ? x : good));
}

// Prefetch of the line that contains a vector of `N` bytes, by the thread whose vector is at the start of the line.
template <int N> DEVICE void warm(const void* x) {
    if ((reinterpret_cast<unsigned long long>(x) & 127) < N) prefetch_line(x);
}

// Vector with one value in every element.
template <int N, class T> DEVICE Pack<T, N> repeat(T x) {
    Pack<T, N> found;
#pragma unroll
    for (int i = 0; i < N; ++i) found.at[i] = x;
    return found;
}

DEVICE float wide(float x) { return x; }
DEVICE double wide(double x) { return x; }
template <class T, class X> DEVICE T stored(X x) { return T(x); }
template <> DEVICE bf16 stored<bf16, float>(float x) { bf16 y; narrow(x, y); return y; }
template <> DEVICE f16 stored<f16, float>(float x) { f16 y; narrow(x, y); return y; }

namespace op {
// The value of an 8-bit float e4m3fn.
DEVICE float from_float8(int i) {
    bf16 x;
    x.bits = (i & 128) << 8 | (i & 127) << 4;
    return (i & 127) == 127 ? infinity() - infinity() : wide(x) * 1.329227995784916e36f;
}
template <class A, class B> DEVICE auto max(A a, B b) { return a < b || b != b ? b : a; }
template <class A, class B> DEVICE auto min(A a, B b) { return b < a || b != b ? b : a; }
template <class A> DEVICE A abs(A x) { return x < 0 ? -x : x; }
DEVICE float abs(float x) { return fabsf(x); }
DEVICE double exp2(double x) { return ::exp2(x); }
DEVICE float exp(float x) { return exp2(x * 1.4426950408889634f); }
DEVICE double exp(double x) { return ::exp(x); }
DEVICE double div(double a, double b) { return a / b; }
DEVICE float recip(float x) { return div(1.0f, x); }
DEVICE double recip(double x) { return 1.0 / x; }
DEVICE float log(float x) { return logf(x); }
DEVICE double log(double x) { return ::log(x); }
DEVICE float log1p(float x) { return log1pf(x); }
DEVICE double log1p(double x) { return ::log1p(x); }
DEVICE float expm1(float x) { return expm1f(x); }
DEVICE double expm1(double x) { return ::expm1(x); }
DEVICE double sqrt(double x) { return ::sqrt(x); }
DEVICE float erf(float x) { return erff(x); }
DEVICE double erf(double x) { return ::erf(x); }
// Sine and cosine of far arguments, in one piece of code for all places of a kernel that rarely need it.
RARE float far_sine(float x, bool quarter) { return float(quarter ? ::cos(double(x)) : ::sin(double(x))); }
// Sine of x, or of x + pi / 2, to two units in the last place: x less the nearest multiple of pi / 2, in three parts, and polynomials of
// both sine and cosine, so that a compiler computes them once where both are needed.
DEVICE float sine(float x, bool quarter) {
    const float turns = rintf(x * 0.636619747f);
    const float near = fmaf(turns, -1.57079601287841796875f, x);
    const float rest = fmaf(turns, -5.390302529957764e-15f, fmaf(turns, -3.1391647326017846e-7f, near)), square = rest * rest;
    const float odd = fmaf(fmaf(fmaf(-1.9515295891e-4f, square, 8.3321608736e-3f), square, -1.6666654611e-1f) * square, rest, rest);
    const float even = fmaf(fmaf(fmaf(fmaf(2.443315711809948e-5f, square, -1.388731625493765e-3f), square, 4.166664568298827e-2f), square, -0.5f), square, 1.0f);
    const int quarters = int(turns) + quarter;
    float z = (quarters & 1) != 0 ? even : odd;
    z = (quarters & 2) != 0 ? -z : z;
    if (!(fabsf(x) < 105615.0f)) z = far_sine(x, quarter);
    return z;
}
DEVICE float sin(float x) { return sine(x, false); }
DEVICE double sin(double x) { return ::sin(x); }
DEVICE float cos(float x) { return sine(x, true); }
DEVICE double cos(double x) { return ::cos(x); }
DEVICE float floor(float x) { return floorf(x); }
DEVICE double floor(double x) { return ::floor(x); }
DEVICE float ceil(float x) { return ceilf(x); }
DEVICE double ceil(double x) { return ::ceil(x); }
DEVICE float pow(float a, float b) { return powf(a, b); }
DEVICE double pow(double a, double b) { return ::pow(a, b); }
DEVICE float tanh(float x) { return 1.0f - div(2.0f, 1.0f + exp2(x * 2.8853900817779268f)); }
DEVICE double tanh(double x) { return ::tanh(x); }
template <class A> DEVICE A sign(A x) { return x > 0 ? A(1) : x < 0 ? A(-1) : x; }
template <class A> DEVICE bool is_inf(A x) { return x == x && x - x != x - x; }
// Integer quotients and remainders, rounded down; 0 for a divisor of 0; the smallest number divided by -1 wraps around.
template <class A, class B> DEVICE auto floor_div(A x, B y) {
    using T = decltype(x + y);
    const T a = x, b = y;
    if (b == 0 || (T(-1) < T(0) && b == T(-1))) return b == 0 ? T(0) : T(T(0) - a);
    return T(a / b - T(a % b != 0 && (a % b ^ b) < 0));
}
template <class A, class B> DEVICE auto floor_mod(A x, B y) {
    using T = decltype(x + y);
    const T a = x, b = y;
    if (b == 0 || (T(-1) < T(0) && b == T(-1))) return T(0);
    const T rest = a % b;
    return rest != 0 && (rest ^ b) < 0 ? T(rest + b) : rest;
}
template <class A> DEVICE A finite(A x) { return x == -A(infinity()) ? A(0) : x; }
}  // namespace op

struct Sum { template <class T> static DEVICE T of(T a, T b) { return a + b; } };
struct Max { template <class T> static DEVICE T of(T a, T b) { return op::max(a, b); } };
struct Min { template <class T> static DEVICE T of(T a, T b) { return op::min(a, b); } };
struct Prod { template <class T> static DEVICE T of(T a, T b) { return a * b; } };

template <class T, int N> DEVICE void fill(T (&x)[N], T value) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = value;
}

template <class Op, int STRIDE, int LANES, class T, int N> DEVICE void across_warp(T (&x)[N]) {
#pragma unroll
    for (int step = STRIDE; step < STRIDE * LANES; step *= 2)
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = Op::of(x[i], across_lanes(x[i], step));
}
template <int STEP, class T, int N> DEVICE int put(T* place, const T (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) place[i * STEP] = x[i];
    return N * STEP;
}
template <class Op, int STEP, int PARTS, int APART, class T, int N> DEVICE int get(const T* place, T (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        x[i] = place[i * STEP];
#pragma unroll
        for (int p = 1; p < PARTS; ++p) x[i] = Op::of(x[i], place[p * APART + i * STEP]);
    }
    return N * STEP;
}

// Reduction of the values of COUNT threads of a block, STRIDE apart; all of them get the results. First the lanes of a warp, then warps
// through shared memory of (number of these warps) * THREADS / COUNT * (values per thread) elements.
template <class Op, int STRIDE, int COUNT, int THREADS, class T, int... N> DEVICE void across(T* shared, T (&... x)[N]) {
    constexpr int lanes = STRIDE < 32 ? least(COUNT, 32 / STRIDE) : 1, parts = COUNT / lanes, others = THREADS / COUNT;
    constexpr int places = (N + ...) * others;
    (across_warp<Op, STRIDE, lanes>(x), ...);
    if constexpr (parts > 1) {
        const int thread = threadIdx.x, other = thread % STRIDE + thread / (STRIDE * COUNT) * STRIDE;
        int at = thread / (STRIDE * lanes) % parts * places + other;
        if (thread / STRIDE % lanes == 0) ((at += put<others>(shared + at, x)), ...);
        __syncthreads();
        at = other;
        if constexpr (places / others * parts > 32) {
            for (int place = thread; place < places; place += THREADS) {
                T found[1];
                get<Op, 1, parts, places>(shared + place, found);
                shared[place] = found[0];
            }
            __syncthreads();
            ((at += get<Op, others, 1, places>(shared + at, x)), ...);
        } else {
            ((at += get<Op, others, parts, places>(shared + at, x)), ...);
        }
    }
}

// Product of 16 rows and 8 columns in a warp: each thread has 8 elements along K of one row, of the row 8 below it, and of one column.
// Both operands have the same permutation of the elements along K, which leaves the sum unchanged.
template <class T> DEVICE void multiply(float (&sums)[4], const Pack<T, 8>& above, const Pack<T, 8>& below, const Pack<T, 8>& right) {
    const unsigned *a = reinterpret_cast<const unsigned*>(&above), *b = reinterpret_cast<const unsigned*>(&below);
    const unsigned* c = reinterpret_cast<const unsigned*>(&right);
    matrix_step(sums, a[0], b[0], a[1], b[1], c[0], c[1], T());
    matrix_step(sums, a[2], b[2], a[3], b[3], c[2], c[3], T());
}
// Conversion of 16 bytes of codes (quantized numbers) to 16-bit floats, two at a time; `offset` is added to each integer.
template <class T> DEVICE unsigned pair(float x) {
    const T y = stored<T>(x);
    return y.bits | (unsigned)y.bits << 16;
}
template <class T> constexpr unsigned one_pair = is_bf16<T> ? 0x3f803f80u : 0x3c003c00u;
template <class T, int N> DEVICE unsigned& word(Pack<T, 8> (&x)[N], int i) { return reinterpret_cast<unsigned*>(&x[i / 4])[i % 4]; }
// Integers 0 to 15 in the low and high halves of bytes: their bits become the low mantissa bits of 128 (bf16) or 1024 (f16).
template <class T> DEVICE void nibbles(Pack<T, 8> (&y)[4], const Pack<unsigned char, 16>& x, float offset) {
    constexpr bool brief = is_bf16<T>;
    const unsigned *codes = reinterpret_cast<const unsigned*>(&x), high = brief ? 0x43434343u : 0x64646464u;
    const unsigned one = one_pair<T>, less = pair<T>(offset - (brief ? 128.0f : 1024.0f));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const unsigned halves = (i < 4 ? codes[i] : codes[i - 4] >> 4) & 0x0f0f0f0fu;
        word(y, 2 * i) = pair_sum(pick(halves, high, 0x4140), one, less, T());
        word(y, 2 * i + 1) = pair_sum(pick(halves, high, 0x4342), one, less, T());
    }
}
// The same without subtraction: the integers 0 to 15 plus 128 (bf16) or 1024 (f16).
template <class T> constexpr float bare_base = is_bf16<T> ? 128.0f : 1024.0f;
template <class T> DEVICE void bare_nibbles(Pack<T, 8> (&y)[4], const Pack<unsigned char, 16>& x) {
    const unsigned *codes = reinterpret_cast<const unsigned*>(&x), high = is_bf16<T> ? 0x43434343u : 0x64646464u;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const unsigned halves = (i < 4 ? codes[i] : codes[i - 4] >> 4) & 0x0f0f0f0fu;
        word(y, 2 * i) = pick(halves, high, 0x4140);
        word(y, 2 * i + 1) = pick(halves, high, 0x4342);
    }
}
// Sums of 8 elements along K of each of 8 rows, in the elements of the fragment that belong to the row.
template <class T> DEVICE void sum_rows(float (&sums)[4], const Pack<T, 8>& rows) {
    const unsigned one = one_pair<T>, *x = reinterpret_cast<const unsigned*>(&rows);
    matrix_step(sums, one, one, one, one, x[0], x[1], T());
    matrix_step(sums, one, one, one, one, x[2], x[3], T());
}
// Add products of rows and codes of one quantization group: the column's offset times the row's sum is added, then the column's
// scale is applied. A thread has two columns.
DEVICE void add_group(float (&sums)[4], const float (&products)[4], const float (&rows)[4], const float (&offset)[2], const float (&scale)[2]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] += scale[j / 2] * (products[j] + offset[j / 2] * rows[j]);
}
DEVICE void add_sums(float (&sums)[4], const float (&more)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] += more[j];
}
// Floats e2m1 in the low and high halves of bytes: the bytes of the 16-bit floats are looked up by magnitude (prmt).
template <class T> DEVICE void e2m1(Pack<T, 8> (&y)[4], const Pack<unsigned char, 16>& x, float) {
    constexpr bool brief = is_bf16<T>;
    const unsigned* codes = reinterpret_cast<const unsigned*>(&x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned sizes = codes[i] & 0x77777777u, below = codes[i] << 4 & 0x80808080u, above = codes[i] & 0x80808080u;
#pragma unroll
        for (int j = 0; j < 2; ++j) {  // two bytes: low, high, low, high
            const unsigned own = sizes >> 16 * j, signs = pick(below, above, j ? 0x7362 : 0x5140);
            const unsigned high = signs | (brief ? pick(0x3f3f3f00u, 0x40404040u, own) : pick(0x3e3c3800u, 0x46444240u, own));
            const unsigned low = brief ? pick(0xc0800000u, 0xc0804000u, own) : 0;
            word(y, 2 * i + j) = pick(low, high, 0x6240);
            word(y, 2 * i + j + 8) = pick(low, high, 0x7351);
        }
    }
}
// Integers 0 to 255 in bytes: their bits become the low mantissa bits of 1024 (f16), or of 2 ** 23 (float).
template <class T> DEVICE void unsigned_bytes(Pack<T, 8> (&y)[2], const Pack<unsigned char, 16>& x, float offset) {
    const unsigned* codes = reinterpret_cast<const unsigned*>(&x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const unsigned own = codes[i / 2];
        if constexpr (is_bf16<T>) {
            const float less = offset - 8388608.0f;
            const float a = __uint_as_float(pick(own, 0x4b000000u, i % 2 ? 0x7652 : 0x7650)) + less;
            const float b = __uint_as_float(pick(own, 0x4b000000u, i % 2 ? 0x7653 : 0x7651)) + less;
            word(y, i) = pair_of(a, b, T());
        } else {
            word(y, i) = pair_sum(pick(own, 0x64646464u, i % 2 ? 0x4342 : 0x4140), one_pair<T>, pair<T>(offset - 1024.0f), T());
        }
    }
}
template <class T> DEVICE void signed_bytes(Pack<T, 8> (&y)[2], const Pack<unsigned char, 16>& x, float offset) {
    Pack<unsigned char, 16> moved;
#pragma unroll
    for (int i = 0; i < 4; ++i) reinterpret_cast<unsigned*>(&moved)[i] = reinterpret_cast<const unsigned*>(&x)[i] ^ 0x80808080u;
    unsigned_bytes(y, moved, offset - 128.0f);
}
// Floats e4m3fn.
template <class T> DEVICE void float8(Pack<T, 8> (&y)[2], const Pack<unsigned char, 16>& x, float) {
    const unsigned* codes = reinterpret_cast<const unsigned*>(&x);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs_of_float8(word(y, 2 * i), word(y, 2 * i + 1), codes[i], T());
}
template <class T, int N> DEVICE void scaled(Pack<T, 8> (&x)[N], float by) {
    const unsigned factor = pair<T>(by);
#pragma unroll
    for (int i = 0; i < 4 * N; ++i) word(x, i) = pair_sum(word(x, i), factor, 0x80008000u, T());
}
template <class T, int N> DEVICE void moved(Pack<T, 8> (&x)[N], float by) {
    const unsigned more = pair<T>(by);
#pragma unroll
    for (int i = 0; i < 4 * N; ++i) word(x, i) = pair_sum(word(x, i), one_pair<T>, more, T());
}
// Products of 16-bit floats, two at a time, each rounded once.
template <class T> DEVICE void multiply_pairs(Pack<T, 8>& y, const Pack<T, 8>& a, const Pack<T, 8>& b) {
    const unsigned *x = reinterpret_cast<const unsigned*>(&a), *w = reinterpret_cast<const unsigned*>(&b);
#pragma unroll
    for (int i = 0; i < 4; ++i) reinterpret_cast<unsigned*>(&y)[i] = pair_sum(x[i], w[i], 0x80008000u, T());
}
// Store of a warp's fragments of a product, TILES times 8 columns of 16 rows each, to shared memory with row stride ROW; and the sum over
// the fragments of PARTS warps.
template <int ROW, int TILES, int N> DEVICE void put_product(float* place, const float (&x)[N][4]) {
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) place[(i / TILES * 16 + row + j / 2 * 8) * ROW + i % TILES * 8 + column + j % 2] = x[i][j];
}
// Store of the fragments of a transposed product (columns times rows): 16 columns of 8 rows each.
template <int ROW, int TILES, int N> DEVICE void put_columns(float* place, const float (&x)[N][4]) {
    const int column = threadIdx.x % 32 / 4, row = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) place[(i / TILES * 8 + row + j % 2) * ROW + i % TILES * 16 + column + j / 2 * 8] = x[i][j];
}
// Store of the diagonals of 8 x 8 squares of fragments: row-wise sums of products (row i of one operand with row i of the other).
template <int N> DEVICE void put_diagonal(float* place, const float (&x)[N][4]) {
    const int row = threadIdx.x % 32 / 4;
    if (threadIdx.x % 4 == row / 2)
#pragma unroll
        for (int i = 0; i < N; ++i) place[i * 8 + row] = row % 2 ? x[i][i % 2 * 2 + 1] : x[i][i % 2 * 2];
}
template <int PARTS, int APART> DEVICE float gathered(const float* place) {
    float sum = place[0];
#pragma unroll
    for (int p = 1; p < PARTS; ++p) sum += place[p * APART];
    return sum;
}

// Whether this block is the last of `parts` blocks to arrive; the counter is zero before the first and after the last.
DEVICE bool is_last(int* counter, int parts) {
    __shared__ bool last;
    visible();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(counter, 1) == parts - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    visible();
    return last;
}
