// Values of other lanes on a CPU (cuda_host.h).
inline float from_lane(float x, int lane) {
    const int own = host::current, parity = host::fibers[own].points % 2;
    std::memcpy(&host::slots[parity][own], &x, sizeof x);
    host::meet_warp();
    float y;
    std::memcpy(&y, &host::slots[parity][own / 32 * 32 + lane], sizeof y);
    return y;
}
