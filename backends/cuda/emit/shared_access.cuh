// Hardware access of products whose rows a block shares: the value of another lane.
DEVICE float from_lane(float x, int lane) { return __shfl_sync(0xffffffff, x, lane); }
