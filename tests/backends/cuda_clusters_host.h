// Distributed shared memory on a CPU, for the blocks of a cluster that run together (cuda_host.h): an address is a place in the shared
// memory of a block, with the number of the block in its upper bits.

namespace clustered {
typedef unsigned Address;
struct Expected { Address at; int phase, bytes; bool announced; };
static host::List<Expected> barriers;

// The barrier at an address; null if none was made there.
inline Expected* found(Address at) {
    for (int i = 0; i < barriers.count; ++i)
        if (barriers[i].at == at) return &barriers[i];
    return nullptr;
}
inline Expected& barrier_at(Address at) {
    Expected* b = found(at);
    if (!b) std::abort();
    return *b;
}

inline int block_rank() { return host::current / host::size_of_block; }
inline Address place_of(const void* x) { return Address(static_cast<const unsigned char*>(x) - host::room()) | block_rank() << 20; }
inline Address in_block(Address at, int block) { return (at & 0xfffff) | block << 20; }
inline void settle(Expected& b) {
    host::moved = true;
    if (b.announced && b.bytes == 0) b.announced = false, ++b.phase;
}
inline void make_barrier(Address at, int bytes) {
    if (!found(at)) barriers.resize(barriers.count + 1), barriers[barriers.count - 1].at = at;
    barrier_at(at) = {at, 0, bytes, true};
}
inline void await(Address at) {
    while (barrier_at(at).phase == 0) host::leave(host::fibers[host::current]);
    host::moved = true;
}
// Whether all blocks of the cluster have begun: barriers of another block may be used from then on.
inline void arrive_cluster() { host::moved = true, ++host::begun; }
inline void await_cluster() {
    while (host::begun < host::block_meetings.count * host::size_of_block) host::leave(host::fibers[host::current]);
    host::moved = true;
}
template <int N> void send(Address to, const float (&x)[N], Address barrier) {
    std::memcpy(host::room(to >> 20) + (to & 0xfffff), x, sizeof x);
    Expected& b = barrier_at(barrier);
    b.bytes -= sizeof x;
    settle(b);
}
inline float highest(float x) {
    for (int step = 1; step < 32; step *= 2) x = op::max(x, across_lanes(x, step));
    return x;
}
}  // namespace clustered
