// The windows of a convolution written out as columns, and columns added up to an image again.
//
//     unfold    columns[map, (c, r, s), p] = image[map, c, row(p) * stride - padding + r * dilation, ...], 0 outside
//     fold      image[map, c, q] = sum of all columns that came from q: the transpose of unfold
//
// A map is one sample of one device. Columns of `per` maps lie side by side in one matrix of (c, r, s) times
// per * rows * columns. One thread is one position, so neighbours read and write neighbours; it goes over the window in
// a fixed order and adds alone: results repeat bit for bit.

#define GEOMETRY                                                                                                   \
    int maps, int channels, int height, int width, int rows, int columns, int kernel_h, int kernel_w, int stride_h, \
        int stride_w, int padding_h, int padding_w, int dilation_h, int dilation_w, int per

#define START(map)                                                                                          \
    ((long long)((map) / per) * channels * kernel_h * kernel_w * per * rows * columns + ((map) % per) * rows * columns)

// grid: (blocks of positions of the output, channels, maps)
extern "C" __global__ void unfold(const float* __restrict__ image, float* __restrict__ columns_out, GEOMETRY)
{
    const int p = blockIdx.x * blockDim.x + threadIdx.x;
    const int length = rows * columns, channel = blockIdx.y;
    if (p >= length) return;
    const int top = p / columns * stride_h - padding_h, left = p % columns * stride_w - padding_w;
    const long long line = (long long)per * length;
    for (int map = blockIdx.z; map < maps; map += gridDim.z) {
        const float* from = image + ((long long)map * channels + channel) * height * width;
        float* to = columns_out + START(map) + (long long)channel * kernel_h * kernel_w * line + p;
        for (int r = 0; r < kernel_h; ++r) {
            const int row = top + r * dilation_h;
            for (int s = 0; s < kernel_w; ++s) {
                const int column = left + s * dilation_w;
                const bool inside = row >= 0 && row < height && column >= 0 && column < width;
                *to = inside ? from[row * width + column] : 0.0f;
                to += line;
            }
        }
    }
}

// grid: (blocks of positions of the image, channels, maps)
extern "C" __global__ void fold(const float* __restrict__ columns_in, float* __restrict__ image, GEOMETRY)
{
    const int q = blockIdx.x * blockDim.x + threadIdx.x;
    const int length = rows * columns, channel = blockIdx.y;
    if (q >= height * width) return;
    const int down = q / width + padding_h, right = q % width + padding_w;
    const long long line = (long long)per * length;
    for (int map = blockIdx.z; map < maps; map += gridDim.z) {
        const float* from = columns_in + START(map) + (long long)channel * kernel_h * kernel_w * line;
        float sum = 0.0f;
        for (int r = 0; r < kernel_h; ++r) {
            const int far_h = down - r * dilation_h, row = far_h / stride_h;
            const bool in_row = far_h >= 0 && row * stride_h == far_h && row < rows;
            for (int s = 0; s < kernel_w; ++s) {
                const int far_w = right - s * dilation_w, column = far_w / stride_w;
                if (in_row && far_w >= 0 && column * stride_w == far_w && column < columns)
                    sum += from[row * columns + column];
                from += line;
            }
        }
        image[((long long)map * channels + channel) * height * width + q] = sum;
    }
}
