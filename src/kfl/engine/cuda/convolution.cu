// One block of a small network, for many devices with weights of their own:
//     convolution KS x KS without padding, plus bias, ReLU, pooling 2 x 2 by the maximum.
//
// Layout: samples lie side by side. Images are (devices, channels, height, width, samples), so the 32 threads of a
// warp are 32 samples, every load is coalesced, and a weight is the same number for all of them. Each thread works
// on one pooled pixel at a time: it holds the (KS+1) x (KS+1) patch behind it in registers and uses every number of
// it for four positions and all output channels. All arithmetic is float32.
//
// `code` says where a pooled value came from: 0 to 3 for the position in its window, 4 where ReLU cut it off.
// Sums over samples are written per block and added up by the caller: no atomics, so results repeat bit for bit.
//
// Set by the compiler's options: IC, OC channels, H, W size of the input, KS kernel (odd), GROUP output channels
// that one warp of `weight_gradient` keeps in registers (divides OC).

#define PH ((H - KS + 1) / 2)
#define PW ((W - KS + 1) / 2)
#define PATCH (KS + 1)
#define TAPS (KS * KS)
#define OCP ((OC + 3) / 4 * 4)
#define ICP ((IC + 3) / 4 * 4)
#define FULL 0xffffffffu

// grid: (sample blocks, PH * column blocks, devices), block: any multiple of 32.
extern "C" __global__ void __launch_bounds__(128) forward(
    const float* __restrict__ images, const float* __restrict__ weights, const float* __restrict__ biases,
    float* __restrict__ pooled, unsigned char* __restrict__ code, int samples, int columns)
{
    __shared__ __align__(16) float w[IC * TAPS * OCP];
    __shared__ float bias[OC];
    const int device = blockIdx.z;
    for (int i = threadIdx.x; i < IC * TAPS * OC; i += blockDim.x) {
        const int out = i / (IC * TAPS), rest = i % (IC * TAPS);
        w[rest * OCP + out] = weights[(long long)device * OC * IC * TAPS + i];
    }
    for (int i = threadIdx.x; i < OC; i += blockDim.x) bias[i] = biases[device * OC + i];
    __syncthreads();

    const int blocks = (PW + columns - 1) / columns;
    const int py = blockIdx.y / blocks, first = (blockIdx.y % blocks) * columns;
    const int last = first + columns < PW ? first + columns : PW;
    const int wanted = blockIdx.x * blockDim.x + threadIdx.x;
    const int sample = wanted < samples ? wanted : samples - 1;
    const float* own = images + (long long)device * IC * H * W * samples + sample;

    for (int px = first; px < last; ++px) {
        float sum[4][OC];
#pragma unroll
        for (int q = 0; q < 4; ++q)
#pragma unroll
            for (int out = 0; out < OC; ++out) sum[q][out] = bias[out];
#pragma unroll 1
        for (int in = 0; in < IC; ++in) {
            float patch[PATCH][PATCH];
            const float* corner = own + (long long)((in * H + 2 * py) * W + 2 * px) * samples;
#pragma unroll
            for (int i = 0; i < PATCH; ++i)
#pragma unroll
                for (int j = 0; j < PATCH; ++j) patch[i][j] = corner[(i * W + j) * samples];
            const float* row = w + in * TAPS * OCP;
#pragma unroll
            for (int ky = 0; ky < KS; ++ky)
#pragma unroll
                for (int kx = 0; kx < KS; ++kx)
#pragma unroll
                    for (int out = 0; out < OC; ++out) {
                        const float weight = row[(ky * KS + kx) * OCP + out];
                        sum[0][out] += weight * patch[ky][kx];
                        sum[1][out] += weight * patch[ky][kx + 1];
                        sum[2][out] += weight * patch[ky + 1][kx];
                        sum[3][out] += weight * patch[ky + 1][kx + 1];
                    }
        }
        if (wanted < samples) {
#pragma unroll
            for (int out = 0; out < OC; ++out) {
                // The first of equal values wins and a value that is not a number always does, as in PyTorch.
                float best = sum[0][out];
                int where = 0;
#pragma unroll
                for (int q = 1; q < 4; ++q)
                    if (sum[q][out] > best || sum[q][out] != sum[q][out]) {
                        best = sum[q][out];
                        where = q;
                    }
                const long long place = (((long long)device * OC + out) * PH * PW + py * PW + px) * samples + sample;
                pooled[place] = best <= 0.0f ? 0.0f : best;
                code[place] = best <= 0.0f ? 4 : where;
            }
        }
    }
}

// partial: (devices, slots, OC * (IC * TAPS + 1)), the last of each output channel its bias; slot = (y, sample block).
// grid: (sample blocks, row parts * IC * OC/GROUP, devices), block: 32 x 4. Each lane takes `chunks` samples.
extern "C" __global__ void __launch_bounds__(128) weight_gradient(
    const float* __restrict__ images, const float* __restrict__ gradient, const unsigned char* __restrict__ code,
    float* __restrict__ partial, int samples, int parts, int chunks)
{
    const int device = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int group = blockIdx.y % (OC / GROUP), in = blockIdx.y / (OC / GROUP) % IC;
    const int part = blockIdx.y / (OC / GROUP * IC);
    const int top = part * PH / parts, bottom = (part + 1) * PH / parts;

    float sum[GROUP][TAPS];
    float whole[GROUP];
#pragma unroll
    for (int out = 0; out < GROUP; ++out) {
        whole[out] = 0.0f;
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) sum[out][tap] = 0.0f;
    }
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const int wanted = ((blockIdx.x * chunks + chunk) * warps + warp) * 32 + lane;
        const int sample = wanted < samples ? wanted : samples - 1;
        const float* own = images + ((long long)device * IC + in) * H * W * samples + sample;
        const long long first = ((long long)device * OC + group * GROUP) * PH * PW * samples + sample;
#pragma unroll 1
        for (int pixel = top * PW; pixel < bottom * PW; ++pixel) {
            const int py = pixel / PW, px = pixel % PW;
            float patch[PATCH][PATCH];
            const float* corner = own + (long long)(2 * py * W + 2 * px) * samples;
#pragma unroll
            for (int i = 0; i < PATCH; ++i)
#pragma unroll
                for (int j = 0; j < PATCH; ++j) patch[i][j] = corner[(i * W + j) * samples];
#pragma unroll
            for (int out = 0; out < GROUP; ++out) {
                const long long place = first + (long long)(out * PH * PW + pixel) * samples;
                const int from = wanted < samples ? code[place] : 4;
                const float g = gradient[place];
                const float g0 = from == 0 ? g : 0.0f, g1 = from == 1 ? g : 0.0f;
                const float g2 = from == 2 ? g : 0.0f, g3 = from == 3 ? g : 0.0f;
                whole[out] += from < 4 ? g : 0.0f;
#pragma unroll
                for (int ky = 0; ky < KS; ++ky)
#pragma unroll
                    for (int kx = 0; kx < KS; ++kx) {
                        sum[out][ky * KS + kx] += g0 * patch[ky][kx];
                        sum[out][ky * KS + kx] += g1 * patch[ky][kx + 1];
                        sum[out][ky * KS + kx] += g2 * patch[ky + 1][kx];
                        sum[out][ky * KS + kx] += g3 * patch[ky + 1][kx + 1];
                    }
            }
        }
    }

    // Add up the 32 lanes by shuffles, then the warps through shared memory.
    __shared__ float shared[4][GROUP * (TAPS + 1)];
#pragma unroll
    for (int out = 0; out < GROUP; ++out)
#pragma unroll
        for (int tap = 0; tap <= TAPS; ++tap) {
            float value = tap < TAPS ? sum[out][tap < TAPS ? tap : 0] : whole[out];
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
                value += __shfl_xor_sync(FULL, value, distance);
            if (lane == 0) shared[warp][out * (TAPS + 1) + tap] = value;
        }
    __syncthreads();
    const int slot = part * gridDim.x + blockIdx.x, slots = parts * gridDim.x;
    float* own = partial + ((long long)device * slots + slot) * OC * (IC * TAPS + 1);
    for (int i = threadIdx.x; i < GROUP * (TAPS + 1); i += blockDim.x) {
        float value = 0.0f;
        for (int other = 0; other < warps; ++other) value += shared[other][i];
        const int out = group * GROUP + i / (TAPS + 1), tap = i % (TAPS + 1);
        if (tap < TAPS) own[out * (IC * TAPS + 1) + in * TAPS + tap] = value;
        else if (in == 0) own[out * (IC * TAPS + 1) + IC * TAPS] = value;
    }
}

// grid: (sample blocks, 2 x 2 tiles of the input, devices), block: any multiple of 32.
extern "C" __global__ void __launch_bounds__(128) input_gradient(
    const float* __restrict__ gradient, const unsigned char* __restrict__ code, const float* __restrict__ weights,
    float* __restrict__ result, int samples)
{
    __shared__ __align__(16) float w[OC * TAPS * ICP];
    const int device = blockIdx.z;
    for (int i = threadIdx.x; i < OC * IC * TAPS; i += blockDim.x) {
        const int out = i / (IC * TAPS), in = i / TAPS % IC, tap = i % TAPS;
        w[(out * TAPS + tap) * ICP + in] = weights[(long long)device * OC * IC * TAPS + i];
    }
    __syncthreads();

    const int tiles = (W + 1) / 2, ty = blockIdx.y / tiles, tx = blockIdx.y % tiles;
    const int wanted = blockIdx.x * blockDim.x + threadIdx.x;
    const int sample = wanted < samples ? wanted : samples - 1;
    float sum[4][IC];
#pragma unroll
    for (int a = 0; a < 4; ++a)
#pragma unroll
        for (int in = 0; in < IC; ++in) sum[a][in] = 0.0f;

#pragma unroll 1
    for (int out = 0; out < OC; ++out) {
        const float* row = w + out * TAPS * ICP;
        const long long first = ((long long)device * OC + out) * PH * PW * samples + sample;
        // An input pixel 2t + a was under the window w at position b with the tap 2 (t - w) + a - b.
#pragma unroll
        for (int dy = 0; dy <= KS / 2; ++dy)
#pragma unroll
            for (int dx = 0; dx <= KS / 2; ++dx) {
                const int wy = ty - dy, wx = tx - dx;
                if (wy < 0 || wy >= PH || wx < 0 || wx >= PW) continue;
                const long long place = first + (long long)(wy * PW + wx) * samples;
                const int from = code[place];
                const float g = gradient[place];
#pragma unroll
                for (int b = 0; b < 4; ++b) {
                    const float z = from == b ? g : 0.0f;
#pragma unroll
                    for (int a = 0; a < 4; ++a) {
                        const int ky = 2 * dy + a / 2 - b / 2, kx = 2 * dx + a % 2 - b % 2;
                        if (ky < 0 || ky >= KS || kx < 0 || kx >= KS) continue;
#pragma unroll
                        for (int in = 0; in < IC; ++in) sum[a][in] += z * row[(ky * KS + kx) * ICP + in];
                    }
                }
            }
    }
    if (wanted >= samples) return;
#pragma unroll
    for (int a = 0; a < 4; ++a) {
        const int y = 2 * ty + a / 2, x = 2 * tx + a % 2;
        if (y >= H || x >= W) continue;
#pragma unroll
        for (int in = 0; in < IC; ++in)
            result[(((long long)device * IC + in) * H * W + y * W + x) * samples + sample] = sum[a][in];
    }
}
