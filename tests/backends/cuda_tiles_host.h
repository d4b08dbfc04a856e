// What tiles of float32 need of the hardware, on a CPU: fetches arrive at once, so that what overtakes a reader shows.
template <int WORDS> void fetch_some(float* to, const float* from, int count) {
    for (int i = 0; i < WORDS; ++i) to[i] = i < count ? from[i] : 0.0f;
}
inline float digits(float x, unsigned add) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7f800000) != 0x7f800000) bits += add;
    bits &= 0xffffe000;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline float truncated(float x) { return digits(x, 0); }
inline float rounded(float x) { return x != x ? x : digits(x, 0x1000); }

// Every thread of a warp shows what it holds, of which the unit reads 11 digits, and adds what is its own.
inline void single_step(float& c0, float& c1, float& c2, float& c3, const float (&a)[4], const float (&b)[2]) {
    static float held[2][1024][6];
    const int thread = host::current, first = thread / 32 * 32, parity = host::fibers[thread].points % 2;
    for (int i = 0; i < 6; ++i) held[parity][thread][i] = truncated(i < 4 ? a[i] : b[i - 4]);
    host::meet_warp();
    float* c[4] = {&c0, &c1, &c2, &c3};
    for (int i = 0; i < 4; ++i) {
        const int row = thread % 32 / 4 + i / 2 * 8, column = thread % 4 * 2 + i % 2;
        for (int k = 0; k < 8; ++k)
            *c[i] += held[parity][first + row % 8 * 4 + k % 4][row / 8 + k / 4 * 2] * held[parity][first + column * 4 + k % 4][4 + k / 4];
    }
}
