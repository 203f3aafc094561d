/* A block of convolution KS x KS, bias, ReLU and max pooling 2 x 2, forward and backward, for one thread.

Sizes are macros: IC and OC channels in and out, H and W of the input, kernel KS, REAL float or double. All arrays are as
PyTorch has them: images (n, IC, H, W), weights (OC, IC, KS, KS), pooled (n, OC, PH, PW), contiguous.

Forward, a vector holds one pixel of LANES images, so that a weight is one number for the whole vector and the four
convolved pixels of a pooling cell stay in registers. Only the largest of the four gets a gradient: `code` remembers
which (0 to 3, the first of equals, as in PyTorch), and backward a quarter of the products is left. There, a vector holds
neighboring numbers of one image with its channels last, a row of KS * IC numbers that one row of a filter meets. */
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define BYTES 64
#define GROUP 6 /* output channels whose sums share the registers: 4 each, of 32 */
#define REGISTERS 32
#elif defined(__AVX__)
#define BYTES 32
#define GROUP 2
#define REGISTERS 16
#else
#define BYTES 16
#define GROUP 6
#define REGISTERS 32
#endif
#define LANES (BYTES / (int)sizeof(REAL))
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

typedef REAL vec __attribute__((vector_size(BYTES), aligned(sizeof(REAL))));
typedef INTEGER mask __attribute__((vector_size(BYTES), aligned(sizeof(REAL)))); /* as wide as REAL */

#define PH ((H - KS + 1) / 2)
#define PW ((W - KS + 1) / 2)
#define CELLS (PH * PW)
#define PIXELS (H * W)
#define TAPS (KS * KS)
#define VECTORS ((KS * IC + LANES - 1) / LANES) /* in a row of a filter */
#define ROW (VECTORS * LANES)
#define AT(a) (*(const vec *)(a))

INLINE vec where(mask chosen, vec one, vec other) { return (vec)((chosen & (mask)one) | (~chosen & (mask)other)); }

/* LANES images as vectors: out (H, W, IC, LANES), with zeros where there are fewer images. */
static void as_lanes(const REAL *images, REAL *out, int present)
{
    if (present < LANES) memset(out, 0, sizeof(REAL) * PIXELS * IC * LANES);
    for (int c = 0; c < IC; ++c)
        for (int p = 0; p < PIXELS; ++p) {
            REAL *to = out + (p * IC + c) * LANES;
            for (int i = 0; i < present; ++i) to[i] = images[((int64_t)i * IC + c) * PIXELS + p];
        }
}

/* `count` output channels from `first` on, of LANES images. */
INLINE void channels(const REAL *lanes, const REAL *weights, const REAL *bias, REAL *pooled, uint8_t *code, int first,
                     const int count, int present)
{
    for (int py = 0; py < PH; ++py)
    for (int px = 0; px < PW; ++px) {
        vec sum[GROUP][4];
        UNROLL for (int o = 0; o < count; ++o)
            UNROLL for (int q = 0; q < 4; ++q) sum[o][q] = (vec){0} + bias[first + o];
        const REAL *corner = lanes + ((2 * py * W + 2 * px) * IC) * LANES;
        for (int y = 0; y < KS; ++y)
        for (int c = 0; c < IC; ++c) {
            const REAL *in = corner + (y * W * IC + c) * LANES;
            const REAL *w = weights + ((int64_t)first * IC + c) * TAPS + y * KS;
            vec l0 = AT(in), l1 = AT(in + W * IC * LANES);
            UNROLL for (int x = 0; x < KS; ++x) {
                vec r0 = AT(in + (x + 1) * IC * LANES), r1 = AT(in + (W + x + 1) * IC * LANES);
                UNROLL for (int o = 0; o < count; ++o) {
                    REAL one = w[o * IC * TAPS + x];
                    sum[o][0] += one * l0; sum[o][1] += one * r0; sum[o][2] += one * l1; sum[o][3] += one * r1;
                }
                l0 = r0; l1 = r1;
            }
        }
        UNROLL for (int o = 0; o < count; ++o) {
            vec best = sum[o][0];
            mask winner = {0};
            UNROLL for (int q = 1; q < 4; ++q) { /* what is not a number wins, as in PyTorch */
                mask larger = (sum[o][q] > best) | (sum[o][q] != sum[o][q]);
                best = where(larger, sum[o][q], best);
                winner = (larger & q) | (~larger & winner);
            }
            best = where(best <= 0, (vec){0}, best);
            int64_t at = (int64_t)(first + o) * CELLS + py * PW + px;
            for (int i = 0; i < present; ++i) pooled[at + (int64_t)i * OC * CELLS] = best[i];
            if (code) for (int i = 0; i < present; ++i) code[at + (int64_t)i * OC * CELLS] = (uint8_t)winner[i];
        }
    }
}

/* pooled = max over cells of max(convolution, 0); `code` may be null. `lanes` is scratch memory of H W IC LANES. */
void forward(const REAL *images, const REAL *weights, const REAL *bias, REAL *pooled, uint8_t *code, REAL *lanes,
             int64_t n)
{
    for (int64_t start = 0; start < n; start += LANES) {
        int present = n - start < LANES ? (int)(n - start) : LANES;
        as_lanes(images + start * IC * PIXELS, lanes, present);
        REAL *to = pooled + start * OC * CELLS;
        uint8_t *which = code ? code + start * OC * CELLS : 0;
        int first = 0;
        for (; first + GROUP <= OC; first += GROUP) channels(lanes, weights, bias, to, which, first, GROUP, present);
        if (OC % GROUP) channels(lanes, weights, bias, to, which, first, OC % GROUP, present);
    }
}

int64_t scratch(void) { return (int64_t)PIXELS * IC * LANES + LANES; }

/* Where the convolved pixel of a cell meets the image, channels last. */
INLINE int corner_of(int cell, int q) { return ((2 * (cell / PW) + q / 2) * W + 2 * (cell % PW) + q % 2) * IC; }

/* sums (OC, KS, ROW) += slope times the window of each winner, one image; all sums stay in registers. */
INLINE void few_weight_gradients(const REAL *image, const REAL *slopes, const uint8_t *code, REAL *sums)
{
    vec sum[OC][KS][VECTORS];
    memcpy(sum, sums, sizeof sum);
    for (int cell = 0; cell < CELLS; ++cell)
        UNROLL for (int o = 0; o < OC; ++o) {
            const REAL *in = image + corner_of(cell, code[o * CELLS + cell]);
            REAL slope = slopes[o * CELLS + cell];
            UNROLL for (int y = 0; y < KS; ++y)
                UNROLL for (int v = 0; v < VECTORS; ++v) sum[o][y][v] += slope * AT(in + y * W * IC + v * LANES);
        }
    memcpy(sums, sum, sizeof sum);
}

/* The same where those of one filter fit into registers; slopes that ReLU cut off are skipped. */
INLINE void many_weight_gradients(const REAL *image, const REAL *slopes, const uint8_t *code, REAL *sums)
{
    for (int o = 0; o < OC; ++o) {
        int place[CELLS], count = 0;
        REAL slope[CELLS];
        for (int cell = 0; cell < CELLS; ++cell) {
            place[count] = corner_of(cell, code[o * CELLS + cell]);
            slope[count] = slopes[o * CELLS + cell];
            count += slope[count] != 0;
        }
        vec sum[KS][VECTORS];
        memcpy(sum, sums + o * KS * ROW, sizeof sum);
        for (int i = 0; i < count; ++i)
            UNROLL for (int y = 0; y < KS; ++y)
                UNROLL for (int v = 0; v < VECTORS; ++v)
                    sum[y][v] += slope[i] * AT(image + place[i] + y * W * IC + v * LANES);
        memcpy(sums + o * KS * ROW, sum, sizeof sum);
    }
}

/* back (H, W, IC) of one image, from rows (OC, KS, ROW) of the weights. */
INLINE void image_gradient(const REAL *slopes, const uint8_t *code, const REAL *rows, REAL *back)
{
    memset(back, 0, sizeof(REAL) * (PIXELS * IC + ROW));
    for (int cell = 0; cell < CELLS; ++cell) {
        int list[4][OC], count[4] = {0};
        REAL slope[4][OC];
        for (int o = 0; o < OC; ++o) { /* channels by which pixel of the cell has won */
            int q = code[o * CELLS + cell], i = count[q];
            list[q][i] = o;
            slope[q][i] = slopes[o * CELLS + cell];
            count[q] += slope[q][i] != 0;
        }
        for (int q = 0; q < 4; ++q) {
            vec sum[KS][VECTORS];
            memset(sum, 0, sizeof sum);
            for (int i = 0; i < count[q]; ++i) {
                const REAL *w = rows + list[q][i] * KS * ROW;
                UNROLL for (int y = 0; y < KS; ++y)
                    UNROLL for (int v = 0; v < VECTORS; ++v) sum[y][v] += slope[q][i] * AT(w + y * ROW + v * LANES);
            }
            REAL *to = back + corner_of(cell, q);
            UNROLL for (int y = 0; y < KS; ++y)
                UNROLL for (int v = 0; v < VECTORS; ++v) *(vec *)(to + y * W * IC + v * LANES) += sum[y][v];
        }
    }
}

/* Gradients of weights and bias, and of the images where `image_slopes` is not null. `lanes` is scratch memory. */
void backward(const REAL *images, const REAL *weights, const REAL *pooled, const uint8_t *code, const REAL *gradient,
              REAL *weight_slopes, REAL *bias_slopes, REAL *image_slopes, REAL *lanes, int64_t n)
{
    static const int used = KS * IC;
    REAL sums[OC * KS * ROW] __attribute__((aligned(64))), rows[OC * KS * ROW] __attribute__((aligned(64)));
    REAL slopes[OC * CELLS], image[PIXELS * IC + ROW];
    memset(sums, 0, sizeof sums);
    memset(rows, 0, sizeof rows);
    memset(image, 0, sizeof image);
    memset(bias_slopes, 0, sizeof(REAL) * OC);
    for (int o = 0; o < OC; ++o) /* a filter as KS rows of (x, c), filled up with zeros to whole vectors */
        for (int y = 0; y < KS; ++y)
            for (int k = 0; k < used; ++k)
                rows[(o * KS + y) * ROW + k] = weights[(o * IC + k % IC) * TAPS + y * KS + k / IC];
    for (int64_t s = 0; s < n; ++s) {
        const REAL *from = images + s * IC * PIXELS;
        const uint8_t *which = code + s * OC * CELLS;
        for (int p = 0; p < PIXELS; ++p)
            for (int c = 0; c < IC; ++c) image[p * IC + c] = from[c * PIXELS + p];
        for (int o = 0; o < OC; ++o) { /* ReLU passes a slope where the output is not 0 */
            REAL sum = 0;
            for (int cell = 0; cell < CELLS; ++cell) {
                int64_t at = (s * OC + o) * CELLS + cell;
                REAL slope = pooled[at] <= 0 ? 0 : gradient[at];
                slopes[o * CELLS + cell] = slope;
                sum += slope;
            }
            bias_slopes[o] += sum;
        }
        if (OC * KS * VECTORS <= REGISTERS - 2) few_weight_gradients(image, slopes, which, sums);
        else many_weight_gradients(image, slopes, which, sums);
        if (!image_slopes) continue;
        image_gradient(slopes, which, rows, lanes);
        REAL *to = image_slopes + s * IC * PIXELS;
        for (int c = 0; c < IC; ++c)
            for (int p = 0; p < PIXELS; ++p) to[c * PIXELS + p] = lanes[p * IC + c];
    }
    for (int o = 0; o < OC; ++o)
        for (int y = 0; y < KS; ++y)
            for (int k = 0; k < used; ++k)
                weight_slopes[(o * IC + k % IC) * TAPS + y * KS + k / IC] = sums[(o * KS + y) * ROW + k];
}
