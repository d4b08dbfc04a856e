// Sums of 8 elements along K of each of 8 rows, as the first operand of mma: the elements of a thread are taken for those of two rows, so
// that one instruction takes all of them. Then each sum, in two parts, goes to the elements of fragments of products that belong to its row.
template <class T> DEVICE void sum_octet(float (&sums)[4], const Pack<T, 8>& rows) {
    const unsigned one = one_pair<T>, *x = reinterpret_cast<const unsigned*>(&rows);
    matrix_step(sums, x[0], x[1], x[2], x[3], one, one, T());
}
DEVICE void spread_sums(float (&rows)[4], const float (&sums)[4]) {
    const float own = sums[0] + sums[2];
    const int first = threadIdx.x % 4 * 8;
    rows[0] = rows[2] = from_lane(own, first), rows[1] = rows[3] = from_lane(own, first + 4);
}
// Products of rows and codes of one quantization group begin as the column's offset times the row's sum; at the end the column's scale is
// applied. A thread has two columns.
DEVICE void begin_group(float (&products)[4], const float (&rows)[4], const float (&offset)[2]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) products[j] = offset[j / 2] * rows[j];
}
DEVICE void end_group(float (&sums)[4], const float (&products)[4], const float (&scale)[2]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] += scale[j / 2] * products[j];
}
// The sum over the fragments of PARTS warps of each of BLOCKS blocks.
template <int PARTS, int APART, int BLOCKS> DEVICE float gathered_blocks(const float* place) {
    float sum = 0.0f;
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
        for (int p = 0; p < PARTS; ++p) sum += in_block(place + p * APART, b);
    return sum;
}
