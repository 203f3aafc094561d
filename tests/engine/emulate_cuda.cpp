// Runs the kernels of convolution.cu on a CPU: the threads of a block are fibres that take turns at every barrier.
#include <ucontext.h>

#include <functional>
#include <vector>

struct Size {
    int x, y, z;
};
static Size threadIdx, blockIdx, blockDim, gridDim;
static float exchange[1024];
static std::vector<ucontext_t> fibres;
static std::vector<std::vector<char>> stacks;
static std::vector<bool> finished;
static ucontext_t scheduler;
static std::function<void()> work;

static void take_turns() {
    const int self = threadIdx.x;
    swapcontext(&fibres[self], &scheduler);
    threadIdx = {self, 0, 0};
}
static void __syncthreads() { take_turns(); }
static float __shfl_xor_sync(unsigned, float value, int distance) {
    exchange[threadIdx.x] = value;
    take_turns();
    const float other = exchange[threadIdx.x ^ distance];
    take_turns();
    return other;
}
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)
#define __align__(bytes)
#define __restrict__
#include "convolution.cu"

static void fibre() {
    work();
    finished[threadIdx.x] = true;
}

static void run_block(int threads) {
    fibres.assign(threads, ucontext_t{});
    stacks.resize(threads);
    finished.assign(threads, false);
    for (int t = 0; t < threads; ++t) {
        stacks[t].resize(1 << 17);
        getcontext(&fibres[t]);
        fibres[t].uc_stack.ss_sp = stacks[t].data();
        fibres[t].uc_stack.ss_size = stacks[t].size();
        fibres[t].uc_link = &scheduler;
        makecontext(&fibres[t], fibre, 0);
    }
    for (bool running = true; running;) {
        running = false;
        for (int t = 0; t < threads; ++t) {
            if (finished[t]) continue;
            threadIdx = {t, 0, 0};
            swapcontext(&scheduler, &fibres[t]);
            running = running || !finished[t];
        }
    }
}

static void run(const int* grid, int threads, std::function<void()> kernel) {
    work = kernel;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    for (int z = 0; z < grid[2]; ++z)
        for (int y = 0; y < grid[1]; ++y)
            for (int x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                run_block(threads);
            }
}

typedef const float* In;
typedef const unsigned char* Code;
extern "C" void run_forward(
    const int* grid, int threads, In images, In weights, In biases, float* pooled, unsigned char* code, int samples,
    int columns) {
    run(grid, threads, [=] { forward(images, weights, biases, pooled, code, samples, columns); });
}
extern "C" void run_weight_gradient(
    const int* grid, int threads, In images, In gradient, Code code, float* partial, int samples, int parts,
    int chunks) {
    run(grid, threads, [=] { weight_gradient(images, gradient, code, partial, samples, parts, chunks); });
}
extern "C" void run_input_gradient(
    const int* grid, int threads, In gradient, Code code, In weights, float* result, int samples) {
    run(grid, threads, [=] { input_gradient(gradient, code, weights, result, samples); });
}
