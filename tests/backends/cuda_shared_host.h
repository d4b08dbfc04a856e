// Sums over the blocks of a cluster, and values of other lanes, on a CPU: the blocks run together (cuda_host.h), each with its own dynamic shared memory.
namespace host {
static Meeting cluster_meeting;
inline void meet_cluster() { meet(cluster_meeting, block_meetings.count * size_of_block); }
}  // namespace host
inline void meet_cluster() { host::meet_cluster(); }
inline void leave_cluster() {}
inline void await_cluster() { host::meet_cluster(); }
inline float in_block(const float* place, int block) {
    const long at = reinterpret_cast<const unsigned char*>(place) - host::room();
    return *reinterpret_cast<const float*>(host::room(block) + at);
}
inline float from_lane(float x, int lane) {
    const int own = host::current, parity = host::fibers[own].points % 2;
    std::memcpy(&host::slots[parity][own], &x, sizeof x);
    host::meet_warp();
    float y;
    std::memcpy(&y, &host::slots[parity][own / 32 * 32 + lane], sizeof y);
    return y;
}
