// Causal attention with grouped heads on tensor cores, without scores in memory (Dao, "FlashAttention-2", 2023).
//
// Compiled at run time for one width of heads, C, 64 or 128. A row of `rows` has H queries, K keys and K values of C
// values each, in bf16; queries already include the scale. Rows are those of whole sequences of length T. Sums are
// f32.
//
// A block of threads owns some queries, or in `backward_keys` some keys; a warp owns 16 of them. Gradients of queries
// and of keys are two kernels, which both recompute the probabilities. So no two blocks add to one value, and the
// order of all sums is fixed. With GROUPS, four warps multiply together (`wgmma`, on Hopper); otherwise each warp
// multiplies alone (`mma`).

typedef unsigned short u16; // A bf16.
typedef unsigned int u32;   // Two of them, or an address in shared memory.
typedef unsigned long long u64;

// Queries or keys of a block of threads; rows of a tile; columns of scores that are computed at once; rows that skip a
// tile together.
constexpr int OWNED = 16 * WARPS;
constexpr int TILE = 64;
#ifdef GROUPS
constexpr int STEP = TILE, TOGETHER = 64;
constexpr int KEPT = C == 64 ? C / 16 : 1; // Parts of keys and values in registers: all, or one.
#else
constexpr int STEP = 32, TOGETHER = 16;
constexpr int KEPT = C / 16;
#endif
constexpr int THREADS = 32 * WARPS;
constexpr int PARTS = C / 16; // Steps of a product's inner dimension, over a head.
constexpr int ROW = 2 * C;    // Bytes of a tile's row.
constexpr int PANEL_ROW = 128; // A tile is in panels of 64 columns.
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
#define INFINITE __int_as_float(0x7f800000)

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_of(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two values rounded to bf16, ties to even.
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ __forceinline__ float product_of(u32 one, u32 other) {
    return __uint_as_float(one << 16) * __uint_as_float(other << 16) +
           __uint_as_float(one & 0xffff0000u) * __uint_as_float(other & 0xffff0000u);
}

// 16 bytes of a tile of ROWS rows in shared memory. Eight neighbouring rows have the same columns in different banks,
// in the order that `wgmma` calls a swizzle of 128 bytes.
template <int ROWS>
__device__ __forceinline__ u32 place(u32 tile, int row, int chunk) {
    return tile + (chunk >> 3) * ROWS * PANEL_ROW + row * PANEL_ROW + (((chunk & 7) ^ (row & 7)) << 4);
}

// Starts to copy `count` rows of C values to a tile. Missing rows become 0.
template <int ROWS>
__device__ __forceinline__ void fetch(u32 tile, const u16 *from, u64 stride, int count) {
    constexpr int CHUNKS = C / 8;
    static_assert(ROWS * CHUNKS % THREADS == 0, "all threads copy equally often");
#pragma unroll
    for (int begin = 0; begin < ROWS * CHUNKS; begin += THREADS) {
        const int row = (begin + threadIdx.x) / CHUNKS, chunk = (begin + threadIdx.x) % CHUNKS;
        const int bytes = row < count ? 16 : 0;
        const u16 *source = from + (row < count ? row : 0) * stride + chunk * 8;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place<ROWS>(tile, row, chunk)), "l"(source), "r"(bytes));
    }
}

// The same for tile `index` of a head's keys and of its values, in one of two places in turn.
__device__ __forceinline__ void fetch_keys(u32 tiles, const u16 *keys, const u16 *values, u64 W, int T, int index) {
    const int begin = index * TILE;
    const u32 tile = tiles + (index & 1) * 2 * TILE * ROW;
    fetch<TILE>(tile, keys + begin * W, W, T - begin);
    fetch<TILE>(tile + TILE * ROW, values + begin * W, W, T - begin);
}

// `fetch` for TILE numbers.
__device__ __forceinline__ void fetch_numbers(u32 to, const float *from, int count) {
    const int at = threadIdx.x;
    if (at < TILE) {
        const int bytes = at < count ? 4 : 0;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + 4 * at), "l"(from + (at < count ? at : 0)), "r"(bytes));
    }
}

// Waits until all fetches are complete and all threads have finished the earlier work.
__device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_all;" ::: "memory");
#ifdef GROUPS
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
}

// A thread's part of 16 rows by 8 columns: values 0 and 1 are neighbours in row `lane / 4` from column `lane % 4 * 2`
// on; 2 and 3 are the same eight rows below.
__device__ __forceinline__ int lane() { return threadIdx.x & 31; }
// The index of the warp, which the compiler knows to be uniform.
__device__ __forceinline__ int warp() { return __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0); }

__device__ __forceinline__ void load(u32 (&to)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at));
}

// 16 rows of a tile of OWNED rows as left operands, or as many parts of them as are kept.
template <int PARTS_KEPT>
__device__ __forceinline__ void rows_of(u32 (&to)[PARTS_KEPT][4], u32 tile, int first) {
#pragma unroll
    for (int part = 0; part < PARTS_KEPT; part++) load(to[part], place<OWNED>(tile, first + (lane() & 15), 2 * part + (lane() >> 4)));
}

// STEP columns of probabilities, or of a gradient, as left operands.
__device__ __forceinline__ void packed(u32 (&to)[STEP / 16][4], const float (&from)[STEP / 8][4]) {
#pragma unroll
    for (int at = 0; at < STEP / 8; at++) {
        to[at / 2][at % 2 * 2] = pack(from[at][0], from[at][1]);
        to[at / 2][at % 2 * 2 + 1] = pack(from[at][2], from[at][3]);
    }
}

#ifdef GROUPS
// Rows of a panel, in groups of 8 that are 1,024 bytes apart, swizzled by 128 bytes (PTX ISA, "Matrix descriptor").
__device__ __forceinline__ u64 described(u32 at) { return (u64)((at & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62; }

#define FOUR(row) "+f"(sums[row][0]), "+f"(sums[row][1]), "+f"(sums[row][2]), "+f"(sums[row][3])
#define SUMS FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7)
#define MULTIPLY                                                                                                     \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "   \
    "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

// sums += left · right, or without ADDED sums = left · right, of 64 rows, 64 columns and 16 in between. The right
// operand is a panel from `at` on. Its rows are the product's columns, or with TRANSPOSED the 16 in between. Sums may
// be used only after `finish`.
template <int TRANSPOSED, int ADDED>
__device__ __forceinline__ void multiply(float (*sums)[4], const u32 (&left)[4], u32 at) {
    asm volatile("{\n.reg .pred added;\nsetp.ne.b32 added, %38, 0;\n" MULTIPLY "{%32, %33, %34, %35}, %36, added, 1, 1, %37;\n}"
                 : SUMS
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(described(at)), "n"(TRANSPOSED), "n"(ADDED));
}

// The same with a left operand in shared memory.
template <int TRANSPOSED, int ADDED>
__device__ __forceinline__ void multiply(float (*sums)[4], u32 left, u32 at) {
    asm volatile("{\n.reg .pred added;\nsetp.ne.b32 added, %35, 0;\n" MULTIPLY "%32, %33, added, 1, 1, 0, %34;\n}"
                 : SUMS
                 : "l"(described(left)), "l"(described(at)), "n"(TRANSPOSED), "n"(ADDED));
}

// Keeps the compiler from moving uses of these registers across this point: `wgmma` accesses them later than the
// compiler assumes.
__device__ __forceinline__ void settle(float &x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ __forceinline__ void settle(u32 &x) { asm volatile("" : "+r"(x)::"memory"); }
template <typename X, int N>
__device__ __forceinline__ void settle(X (&all)[N]) {
#pragma unroll
    for (int at = 0; at < N; at++) settle(all[at]);
}

// Around products that read and write these registers.
template <typename... All>
__device__ __forceinline__ void begin_products(All &...all) {
    (settle(all), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <typename... All>
__device__ __forceinline__ void finish(All &...all) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    (settle(all), ...);
}

// sums = left · tileᵀ, the left operand being the rows of `rows_of`.
template <int PARTS_KEPT>
__device__ __forceinline__ void by_rows(float (&sums)[STEP / 8][4], const u32 (&left)[PARTS_KEPT][4], u32 whole, u32 tile, int) {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const u32 at = tile + part / 4 * TILE * PANEL_ROW + part % 4 * 32;
        if constexpr (PARTS_KEPT == PARTS) {
            part ? multiply<0, 1>(sums, left[part], at) : multiply<0, 0>(sums, left[part], at);
        } else {
            const u32 from = whole + part / 4 * OWNED * PANEL_ROW + part % 4 * 32 + warp() / 4 * 64 * PANEL_ROW;
            part ? multiply<0, 1>(sums, from, at) : multiply<0, 0>(sums, from, at);
        }
    }
}

// sums += left · tile
__device__ __forceinline__ void by_columns(float (&sums)[C / 8][4], const u32 (&left)[STEP / 16][4], u32 tile, int) {
#pragma unroll
    for (int part = 0; part < STEP / 16; part++)
#pragma unroll
        for (int panel = 0; panel < C / 64; panel++)
            multiply<1, 1>(sums + 8 * panel, left[part], tile + panel * TILE * PANEL_ROW + part * 16 * PANEL_ROW);
}
#else
template <typename... All>
__device__ __forceinline__ void begin_products(All &...) {}
template <typename... All>
__device__ __forceinline__ void finish(All &...) {}

__device__ __forceinline__ void load_transposed(u32 (&to)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at));
}

// sum += left · right, of 16 rows, 8 columns and 16 in between.
__device__ __forceinline__ void multiply(float (&sum)[4], const u32 (&left)[4], u32 right0, u32 right1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

// sums = left · tileᵀ, for STEP rows of the tile from `first` on.
__device__ __forceinline__ void by_rows(float (&sums)[STEP / 8][4], const u32 (&left)[PARTS][4], u32, u32 tile, int first) {
#pragma unroll
    for (int at = 0; at < STEP / 2; at++) sums[at / 4][at % 4] = 0.0f;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
#pragma unroll
        for (int pair = 0; pair < STEP / 16; pair++) {
            u32 right[4];
            const int row = first + 16 * pair + (lane() & 7) + ((lane() >> 4) << 3);
            load(right, place<TILE>(tile, row, 2 * part + ((lane() >> 3) & 1)));
            multiply(sums[2 * pair], left[part], right[0], right[1]);
            multiply(sums[2 * pair + 1], left[part], right[2], right[3]);
        }
    }
}

// sums += left · tile, where the columns of `left`, STEP of them, meet the tile's rows from `first` on.
__device__ __forceinline__ void by_columns(float (&sums)[C / 8][4], const u32 (&left)[STEP / 16][4], u32 tile, int first) {
#pragma unroll
    for (int part = 0; part < STEP / 16; part++) {
#pragma unroll
        for (int pair = 0; pair < C / 16; pair++) {
            u32 right[4];
            load_transposed(right, place<TILE>(tile, first + 16 * part + (lane() & 15), 2 * pair + (lane() >> 4)));
            multiply(sums[2 * pair], left[part], right[0], right[1]);
            multiply(sums[2 * pair + 1], left[part], right[2], right[3]);
        }
    }
}
#endif

// Writes 16 rows of C values, those below `count`.
__device__ __forceinline__ void write(u16 *to, u64 stride, const float (&sums)[C / 8][4], float above, float below, int count) {
    const int row = lane() >> 2, column = 2 * (lane() & 3);
#pragma unroll
    for (int tile = 0; tile < C / 8; tile++) {
        if (row < count) *(u32 *)(to + row * stride + 8 * tile + column) = pack(above * sums[tile][0], above * sums[tile][1]);
        if (row + 8 < count) *(u32 *)(to + (row + 8) * stride + 8 * tile + column) = pack(below * sums[tile][2], below * sums[tile][3]);
    }
}

// The four threads that share a row.
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

extern __shared__ __align__(1024) unsigned char shared[];

// Grid: blocks of queries, H, sequences. Shared memory: (OWNED + 4 · TILE) rows.
extern "C" __global__ void __launch_bounds__(THREADS) forward(const u16 *rows, u16 *out, float *log_sums, int T, int H, int K) {
    const int head = blockIdx.y, served = head / (H / K), first = (gridDim.x - 1 - blockIdx.x) * OWNED;
    const u64 W = (u64)(H + 2 * K) * C;
    rows += blockIdx.z * T * W;
    const u16 *keys = rows + (H + served) * C, *values = keys + K * C;
    const u32 queries = (u32)__cvta_generic_to_shared(shared), tiles = queries + OWNED * ROW;
    const int count = (min(first + OWNED, T) + TILE - 1) / TILE;
    fetch<OWNED>(queries, rows + first * W + head * C, W, T - first);
    fetch_keys(tiles, keys, values, W, T, 0);

    const int own = first + 16 * warp(), row = own + (lane() >> 2), together = own / TOGETHER * TOGETHER;
    float sums[C / 8][4] = {};
    float top[2] = {-INFINITE, -INFINITE}, total[2] = {};
    for (int index = 0; index < count; index++) {
        const int begin = index * TILE;
        arrived();
        if (index + 1 < count) fetch_keys(tiles, keys, values, W, T, index + 1);
        const u32 tile = tiles + (index & 1) * 2 * TILE * ROW;
#pragma unroll
        for (int step = 0; step < TILE; step += STEP) {
            if (begin + step >= together + TOGETHER) break;
            // Loaded for each tile: CUDA 13.0's compiler reuses the registers of operands that are kept over the loop.
            u32 left[PARTS][4];
            float scores[STEP / 8][4];
            rows_of(left, queries, 16 * warp());
            begin_products(left);
            by_rows(scores, left, queries, tile, step);
            finish(scores, left);
            if (begin + step + STEP - 1 > own) {
#pragma unroll
                for (int at = 0; at < STEP / 2; at++) {
                    const int key = begin + step + at / 4 * 8 + 2 * (lane() & 3) + at % 2;
                    if (key > row + (at & 2) * 4) scores[at / 4][at % 4] = -INFINITE;
                }
            }
            float most[2] = {top[0], top[1]};
#pragma unroll
            for (int at = 0; at < STEP / 2; at++) most[at / 2 % 2] = fmaxf(most[at / 2 % 2], scores[at / 4][at % 4]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                most[half] = row_max(most[half]);
                const float scale = exp2_of((top[half] - most[half]) * LOG2_E);
                top[half] = most[half];
                total[half] *= scale;
#pragma unroll
                for (int at = 0; at < C / 8; at++) {
                    sums[at][2 * half] *= scale;
                    sums[at][2 * half + 1] *= scale;
                }
            }
#pragma unroll
            for (int at = 0; at < STEP / 2; at++) {
                float &score = scores[at / 4][at % 4];
                score = exp2_of(score * LOG2_E - most[at / 2 % 2] * LOG2_E);
                total[at / 2 % 2] += score;
            }
            u32 probs[STEP / 16][4];
            packed(probs, scores);
            begin_products(sums, probs);
            by_columns(sums, probs, tile + TILE * ROW, step);
            finish(sums, probs);
        }
    }
    total[0] = row_sum(total[0]);
    total[1] = row_sum(total[1]);
    out += (blockIdx.z * (u64)T + own) * H * C + head * C;
    write(out, (u64)H * C, sums, 1.0f / total[0], 1.0f / total[1], T - own);
    if ((lane() & 3) == 0) {
        log_sums += ((u64)blockIdx.z * H + head) * T;
        if (row < T) log_sums[row] = top[0] + log2_of(total[0]) * LN_2;
        if (row + 8 < T) log_sums[row + 8] = top[1] + log2_of(total[1]) * LN_2;
    }
}

// means[sequence, head, query] ← out · grad_out. C / 8 threads compute a head of a row; grid: 8 · THREADS / C heads
// each.
extern "C" __global__ void __launch_bounds__(THREADS) backward_means(const u16 *out, const u16 *grad_out, float *means, int T, int H, u64 heads) {
    const u64 chunk = (u64)blockIdx.x * THREADS + threadIdx.x, at = chunk / (C / 8);
    float mean = 0.0f;
    if (at < heads) {
        const uint4 one = ((const uint4 *)out)[chunk], other = ((const uint4 *)grad_out)[chunk];
        mean = product_of(one.x, other.x) + product_of(one.y, other.y) + product_of(one.z, other.z) + product_of(one.w, other.w);
    }
#pragma unroll
    for (int far = C / 16; far > 0; far /= 2) mean += __shfl_xor_sync(0xffffffffu, mean, far);
    const u64 row = at / H;
    if (at < heads && chunk % (C / 8) == 0) means[(row / T * H + at % H) * T + row % T] = mean;
}

// Gradients of queries. Grid and shared memory: as `forward`, with OWNED rows more.
extern "C" __global__ void __launch_bounds__(THREADS)
    backward_queries(const u16 *rows, const u16 *grad_out, const float *log_sums, const float *means, u16 *grad_rows, int T, int H, int K) {
    const int head = blockIdx.y, served = head / (H / K), first = (gridDim.x - 1 - blockIdx.x) * OWNED;
    const u64 W = (u64)(H + 2 * K) * C;
    rows += blockIdx.z * T * W;
    const u16 *keys = rows + (H + served) * C, *values = keys + K * C;
    const u32 queries = (u32)__cvta_generic_to_shared(shared), grads = queries + OWNED * ROW, tiles = grads + OWNED * ROW;
    const int count = (min(first + OWNED, T) + TILE - 1) / TILE;
    fetch<OWNED>(queries, rows + first * W + head * C, W, T - first);
    fetch<OWNED>(grads, grad_out + (blockIdx.z * (u64)T + first) * H * C + head * C, (u64)H * C, T - first);
    fetch_keys(tiles, keys, values, W, T, 0);

    const int own = first + 16 * warp(), row = own + (lane() >> 2), together = own / TOGETHER * TOGETHER;
    log_sums += ((u64)blockIdx.z * H + head) * T;
    means += ((u64)blockIdx.z * H + head) * T;
    const float log_sum[2] = {row < T ? log_sums[row] * LOG2_E : 0.0f, row + 8 < T ? log_sums[row + 8] * LOG2_E : 0.0f};
    const float mean[2] = {row < T ? means[row] : 0.0f, row + 8 < T ? means[row + 8] : 0.0f};
    float sums[C / 8][4] = {};
    for (int index = 0; index < count; index++) {
        const int begin = index * TILE;
        arrived();
        if (index + 1 < count) fetch_keys(tiles, keys, values, W, T, index + 1);
        const u32 tile = tiles + (index & 1) * 2 * TILE * ROW;
#pragma unroll
        for (int step = 0; step < TILE; step += STEP) {
            if (begin + step >= together + TOGETHER) break;
            u32 left[PARTS][4], grad_left[PARTS][4];
            float scores[STEP / 8][4], grad_probs[STEP / 8][4];
            rows_of(left, queries, 16 * warp());
            rows_of(grad_left, grads, 16 * warp());
            begin_products(left, grad_left);
            by_rows(scores, left, queries, tile, step);
            by_rows(grad_probs, grad_left, grads, tile + TILE * ROW, step);
            finish(scores, grad_probs, left, grad_left);
#pragma unroll
            for (int at = 0; at < STEP / 2; at++) {
                float &score = scores[at / 4][at % 4];
                const int half = at / 2 % 2;
                const float prob = exp2_of(score * LOG2_E - log_sum[half]);
                const int key = begin + step + at / 4 * 8 + 2 * (lane() & 3) + at % 2;
                score = key > row + 8 * half ? 0.0f : prob * (grad_probs[at / 4][at % 4] - mean[half]);
            }
            u32 grad_scores[STEP / 16][4];
            packed(grad_scores, scores);
            begin_products(sums, grad_scores);
            by_columns(sums, grad_scores, tile, step);
            finish(sums, grad_scores);
        }
    }
    write(grad_rows + (blockIdx.z * (u64)T + own) * W + head * C, W, sums, 1.0f, 1.0f, T - own);
}

// Gradients of keys and values, over all query heads that share them. Grid: blocks of keys, K, sequences. Shared
// memory: (2 · OWNED + 4 · TILE) rows and 4 · TILE numbers.
extern "C" __global__ void __launch_bounds__(THREADS)
    backward_keys(const u16 *rows, const u16 *grad_out, const float *log_sums, const float *means, u16 *grad_rows, int T, int H, int K) {
    const int served = blockIdx.y, group = H / K, first = blockIdx.x * OWNED;
    const u64 W = (u64)(H + 2 * K) * C;
    rows += blockIdx.z * T * W;
    grad_out += blockIdx.z * (u64)T * H * C;
    log_sums += (u64)blockIdx.z * H * T;
    means += (u64)blockIdx.z * H * T;
    const u32 keys = (u32)__cvta_generic_to_shared(shared), values = keys + OWNED * ROW, tiles = values + OWNED * ROW;
    const u32 numbers = tiles + 4 * TILE * ROW;
    // Tiles of queries that attend to some of the keys, of each head.
    const int skipped = first / TILE, of_head = (T + TILE - 1) / TILE - skipped, count = group * of_head;
    auto fetch_queries = [&](int index) {
        const int head = served * group + index / of_head, begin = (skipped + index % of_head) * TILE;
        const u32 tile = tiles + (index & 1) * 2 * TILE * ROW, number = numbers + (index & 1) * 2 * TILE * 4;
        fetch<TILE>(tile, rows + begin * W + head * C, W, T - begin);
        fetch<TILE>(tile + TILE * ROW, grad_out + ((u64)begin * H + head) * C, (u64)H * C, T - begin);
        fetch_numbers(number, log_sums + (u64)head * T + begin, T - begin);
        fetch_numbers(number + TILE * 4, means + (u64)head * T + begin, T - begin);
    };
    fetch<OWNED>(keys, rows + first * W + (H + served) * C, W, T - first);
    fetch<OWNED>(values, rows + first * W + (H + K + served) * C, W, T - first);
    fetch_queries(0);

    const int own = first + 16 * warp(), row = own + (lane() >> 2), together = own / TOGETHER * TOGETHER;
    float key_sums[C / 8][4] = {}, value_sums[C / 8][4] = {};
    for (int index = 0; index < count; index++) {
        arrived();
        if (index + 1 < count) fetch_queries(index + 1);
        const int begin = (skipped + index % of_head) * TILE;
        const u32 tile = tiles + (index & 1) * 2 * TILE * ROW;
        const float *number = (const float *)(shared + (2 * OWNED + 4 * TILE) * ROW) + (index & 1) * 2 * TILE;
#pragma unroll
        for (int step = 0; step < TILE; step += STEP) {
            if (begin + step + STEP <= together) continue;
            u32 left[KEPT][4], value_left[KEPT][4];
            float scores[STEP / 8][4], grad_probs[STEP / 8][4];
            rows_of(left, keys, 16 * warp());
            rows_of(value_left, values, 16 * warp());
            begin_products(left, value_left);
            by_rows(scores, left, keys, tile, step);
            by_rows(grad_probs, value_left, values, tile + TILE * ROW, step);
            finish(scores, grad_probs, left, value_left);
#pragma unroll
            for (int at = 0; at < STEP / 2; at++) {
                float &score = scores[at / 4][at % 4], &grad = grad_probs[at / 4][at % 4];
                const int column = step + at / 4 * 8 + 2 * (lane() & 3) + at % 2;
                const float prob = exp2_of(score * LOG2_E - number[column] * LOG2_E);
                score = row + (at & 2) * 4 > begin + column ? 0.0f : prob;
                grad = score * (grad - number[TILE + column]);
            }
            u32 probs[STEP / 16][4], grad_scores[STEP / 16][4];
            packed(probs, scores);
            packed(grad_scores, grad_probs);
            begin_products(value_sums, key_sums, probs, grad_scores);
            by_columns(value_sums, probs, tile + TILE * ROW, step);
            by_columns(key_sums, grad_scores, tile, step);
            finish(value_sums, key_sums, probs, grad_scores);
        }
    }
    u16 *to = grad_rows + (blockIdx.z * (u64)T + own) * W + (H + served) * C;
    write(to, W, key_sums, 1.0f, 1.0f, T - own);
    write(to + K * C, W, value_sums, 1.0f, 1.0f, T - own);
}
