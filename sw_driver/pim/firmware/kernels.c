/* Kernels. Arguments are byte offsets of tensors in the core's windows, integer sizes, and
   factors as FP32 bits. */
#include "pim.h"

#define ONE 1.0f

KERNEL(relu, 3) { /* x, y, count */
    const u32 *x = WORDS(a[0]);
    u32 *y = WORDS(a[1]);
    for (u32 n = a[2]; n; n--, x++, y++) *y = is_nan(*x) ? NAN_BITS : (i32)*x > 0 ? *x : 0;
}

KERNEL(relu_gradient, 4) { /* y, dy, dx, count */
    const u32 *y = WORDS(a[0]);
    const float *dy = FLOATS(a[1]);
    float *dx = FLOATS(a[2]);
    for (u32 n = a[3]; n; n--, y++, dy++, dx++)
        put(dx, (i32)*y > 0 && !is_nan(*y) ? *dy : 0.0f);
}

KERNEL(fill, 3) { /* x, count, bits */
    u32 *x = WORDS(a[0]);
    for (u32 n = a[1], value = a[2]; n; n--) *x++ = value;
}

/* Slices, concatenates and transposes. */
KERNEL(copy, 14) { /* x, y, four extents, four strides of x, four of y */
    const u32 *n = a + 2, *sx = a + 6, *sy = a + 10;
    const u32 *x = WORDS(a[0]);
    u32 *y = WORDS(a[1]);
    for (u32 i = 0; i < n[0]; i++)
        for (u32 j = 0; j < n[1]; j++)
            for (u32 k = 0; k < n[2]; k++) {
                const u32 *from = x + (i32)(i * sx[0] + j * sx[1] + k * sx[2]);
                u32 *to = y + (i32)(i * sy[0] + j * sy[1] + k * sy[2]);
                for (u32 l = n[3]; l; l--, from += (i32)sx[3], to += (i32)sy[3]) *to = *from;
            }
}

/* Channels of a tensor of outer x channels x inner. */

KERNEL(bias, 6) { /* x, b, y, outer, channels, inner */
    const float *x = FLOATS(a[0]), *b = FLOATS(a[1]);
    float *y = FLOATS(a[2]);
    for (u32 outer = 0; outer < a[3]; outer++)
        for (u32 channel = 0; channel < a[4]; channel++)
            for (u32 n = a[5]; n; n--, x++, y++) put(y, *x + b[channel]);
}

/* Terms of a sum over a channel: from x, or from x and dy at the same place. */
struct channel {
    const float *x, *dy;
    float mean, inverse;
};
static float itself(const struct channel *c, u32 at) { return c->x[at]; }
static float square(const struct channel *c, u32 at) {
    float apart = c->x[at] - c->mean;
    return apart * apart;
}
static float normal(const struct channel *c, u32 at) { return (c->x[at] - c->mean) * c->inverse; }
static float slope(const struct channel *c, u32 at) { return c->dy[at] * normal(c, at); }

/* Sum a channel of a tensor with these three extents, one element after the other. */
static float channel_sum(float (*term)(const struct channel *, u32), const struct channel *c,
                         const u32 *extents, u32 channel) {
    float sum = 0;
    for (u32 outer = 0; outer < extents[0]; outer++) {
        u32 at = (outer * extents[1] + channel) * extents[2];
        for (u32 i = 0; i < extents[2]; i++, at++) {
            float value = term(c, at);
            sum = outer || i ? sum + value : value;
        }
    }
    return sum;
}

KERNEL(bias_gradient, 5) { /* dy, db, outer, channels, inner */
    struct channel c = {.x = FLOATS(a[0])};
    for (u32 i = 0; i < a[3]; i++) put(FLOATS(a[1]) + i, channel_sum(itself, &c, a + 2, i));
}

KERNEL(moments, 7) { /* x, mean, inverse, eps, outer, channels, inner */
    struct channel c = {.x = FLOATS(a[0])};
    float n = (float)(i32)(a[4] * a[6]);
    for (u32 i = 0; i < a[5]; i++) {
        c.mean = channel_sum(itself, &c, a + 4, i) / n;
        put(FLOATS(a[1]) + i, c.mean);
        float variance = channel_sum(square, &c, a + 4, i) / n;
        put(FLOATS(a[2]) + i, ONE / __builtin_sqrtf(variance + number(a[3])));
    }
}

KERNEL(normalise, 9) { /* x, mean, inverse, gamma, beta, y, outer, channels, inner */
    struct channel c = {.x = FLOATS(a[0])};
    u32 at = 0;
    for (u32 outer = 0; outer < a[6]; outer++)
        for (u32 i = 0; i < a[7]; i++) {
            c.mean = FLOATS(a[1])[i], c.inverse = FLOATS(a[2])[i];
            float gamma = FLOATS(a[3])[i], beta = FLOATS(a[4])[i];
            for (u32 last = at + a[8]; at < last; at++)
                put(FLOATS(a[5]) + at, normal(&c, at) * gamma + beta);
        }
}

KERNEL(normalise_gradient, 11) { /* x, dy, mean, inverse, gamma, dx, dgamma, dbeta, extents */
    struct channel c = {.x = FLOATS(a[0]), .dy = FLOATS(a[1])}, of_dy = {.x = FLOATS(a[1])};
    const u32 *extents = a + 8;
    float n = (float)(i32)(extents[0] * extents[2]);
    for (u32 i = 0; i < extents[1]; i++) {
        c.mean = FLOATS(a[2])[i], c.inverse = FLOATS(a[3])[i];
        float factor = FLOATS(a[4])[i] * c.inverse;
        float dbeta = channel_sum(itself, &of_dy, extents, i);
        float dgamma = channel_sum(slope, &c, extents, i);
        put(FLOATS(a[6]) + i, dgamma), put(FLOATS(a[7]) + i, dbeta);
        dbeta = dbeta / n, dgamma = dgamma / n;
        for (u32 outer = 0; outer < extents[0]; outer++) {
            u32 at = (outer * extents[1] + i) * extents[2];
            for (u32 last = at + extents[2]; at < last; at++)
                put(FLOATS(a[5]) + at, factor * ((c.dy[at] - dbeta) - normal(&c, at) * dgamma));
        }
    }
}

/* Pooling. */

struct shape {
    u32 planes, height, width, rows, columns, window_height, window_width, stride, top, left;
};
/* Elements of a window: `rows` rows of `columns` elements from `first` on, `width` apart. */
struct window {
    u32 first, rows, columns, width, result;
};

/* Count the elements from `start` to `start + size` inside of 0 to `limit`; clamp `start`. */
static u32 inside(i32 *start, u32 size, u32 limit) {
    i32 end = *start + (i32)size;
    if (*start < 0) *start = 0;
    if (end > (i32)limit) end = (i32)limit;
    return end > *start ? (u32)(end - *start) : 0;
}

static void windows(void (*visit)(const u32 *a, const struct window *w), const u32 *a,
                    const u32 *shape) {
    const struct shape *s = (const struct shape *)shape;
    struct window w = {.width = s->width};
    for (u32 plane = 0; plane < s->planes; plane++)
        for (u32 row = 0; row < s->rows; row++)
            for (u32 column = 0; column < s->columns; column++, w.result++) {
                i32 y = (i32)(row * s->stride) - (i32)s->top;
                i32 x = (i32)(column * s->stride) - (i32)s->left;
                w.rows = inside(&y, s->window_height, s->height);
                w.columns = inside(&x, s->window_width, s->width);
                w.first = (plane * s->height + (u32)y) * s->width + (u32)x;
                if (w.rows && w.columns) visit(a, &w);
            }
}

static void clear(u32 x, const u32 *shape) {
    const u32 whole[] = {x, shape[0] * shape[1] * shape[2], 0};
    run_fill(whole);
}

/* Return the index of the greatest element; the first one on a tie. */
static u32 greatest(const u32 *x, const struct window *w) {
    u32 best = w->first;
    for (u32 i = 0; i < w->rows; i++)
        for (u32 at = w->first + i * w->width, end = at + w->columns; at < end; at++)
            if (order(x[at]) > order(x[best])) best = at;
    return best;
}

static void most_of(const u32 *a, const struct window *w) {
    const float *x = FLOATS(a[0]);
    put(FLOATS(a[1]) + w->result, x[greatest(WORDS(a[0]), w)]);
}

KERNEL(max_pool, 12) { windows(most_of, a, a + 2); } /* x, y, shape */

static void to_most_of(const u32 *a, const struct window *w) {
    float *dx = FLOATS(a[2]) + greatest(WORDS(a[0]), w);
    put(dx, *dx + FLOATS(a[1])[w->result]);
}

KERNEL(max_pool_gradient, 13) { /* x, dy, dx, shape */
    clear(a[2], a + 3);
    windows(to_most_of, a, a + 3);
}

static void mean_of(const u32 *a, const struct window *w) {
    float sum = 0;
    for (u32 i = 0; i < w->rows; i++)
        for (u32 j = 0; j < w->columns; j++) {
            float value = FLOATS(a[0])[w->first + i * w->width + j];
            sum = i || j ? sum + value : value;
        }
    put(FLOATS(a[1]) + w->result, sum / (float)(i32)(w->rows * w->columns));
}

KERNEL(average_pool, 12) { windows(mean_of, a, a + 2); } /* x, y, shape */

static void to_all_of(const u32 *a, const struct window *w) {
    float share = FLOATS(a[0])[w->result] / (float)(i32)(w->rows * w->columns);
    for (u32 i = 0; i < w->rows; i++)
        for (u32 j = 0; j < w->columns; j++) {
            float *dx = FLOATS(a[1]) + w->first + i * w->width + j;
            put(dx, *dx + share);
        }
}

KERNEL(average_pool_gradient, 12) { /* dy, dx, shape */
    clear(a[1], a + 2);
    windows(to_all_of, a, a + 2);
}

/* Losses. */

/* x, labels, losses, dx, samples, classes, strides of samples and classes, scale */
KERNEL(softmax_cross_entropy, 9) {
    i32 classes = (i32)a[5], step = (i32)a[7];
    for (u32 sample = 0; sample < a[4]; sample++) {
        const float *x = FLOATS(a[0]) + (i32)(sample * a[6]);
        float *dx = FLOATS(a[3]) + (i32)(sample * a[6]);
        u32 label = WORDS(a[1])[sample], most = bits(x[0]);
        for (i32 i = 1; i < classes; i++)
            if (order(bits(x[i * step])) > order(most)) most = bits(x[i * step]);
        float sum = 0, shifted = 0;
        for (i32 i = 0; i < classes; i++) {
            float apart = x[i * step] - number(most), power = exponential(apart);
            if ((u32)i == label) shifted = apart;
            sum = i ? sum + power : power;
            dx[i * step] = power;
        }
        if (label >= (u32)classes) sum = number(NAN_BITS);
        put(FLOATS(a[2]) + sample, logarithm(sum) - shifted);
        for (i32 i = 0; i < classes; i++) {
            float share = dx[i * step] / sum;
            if ((u32)i == label) share = share - ONE;
            put(dx + i * step, share * number(a[8]));
        }
    }
}

/* Dropout. The gradient is the same kernel with dy for x. */

static void philox(u32 *c, u32 k0, u32 k1) {
    for (u32 i = 0; i < 10; i++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        u64 left = (u64)0xD2511F53u * c[0], right = (u64)0xCD9E8D57u * c[2];
        c[0] = (u32)(right >> 32) ^ c[1] ^ k0, c[1] = (u32)right;
        c[2] = (u32)(left >> 32) ^ c[3] ^ k1, c[3] = (u32)left;
    }
}

KERNEL(dropout, 8) { /* x, y, count, two words of the key, offset, threshold, scale */
    const float *x = FLOATS(a[0]);
    u32 words[4];
    for (u32 i = 0; i < a[2]; i++) {
        if (i % 4 == 0) {
            words[0] = i / 4, words[1] = a[5], words[2] = words[3] = 0;
            philox(words, a[3], a[4]);
        }
        put(FLOATS(a[1]) + i, words[i % 4] < a[6] ? 0.0f : x[i] * number(a[7]));
    }
}

/* Optimizers of docs/arithmetic.md and docs/rules.md. */

KERNEL(sgd, 5) { /* p, g, count, lam, lr */
    float *p = FLOATS(a[0]), *g = FLOATS(a[1]), lam = number(a[3]), lr = number(a[4]);
    for (u32 n = a[2]; n; n--, p++, g++) put(p, *p - lr * (*g + lam * *p));
}

/* p, g, m, v, count, lam, beta1, 1 - beta1, beta2, 1 - beta2, inv_bc1, inv_bc2, eps, lr */
KERNEL(adam, 14) {
    float *p = FLOATS(a[0]), *g = FLOATS(a[1]), *m = FLOATS(a[2]), *v = FLOATS(a[3]);
    const float *c = (const float *)(a + 5);
    for (u32 i = 0; i < a[4]; i++) {
        float gradient = g[i] + c[0] * p[i];
        float mean = c[1] * m[i] + c[2] * gradient;
        float square = c[3] * v[i] + c[4] * (gradient * gradient);
        float step = (mean * c[5]) / (__builtin_sqrtf(square * c[6]) + c[7]);
        put(p + i, p[i] - c[8] * step), put(m + i, mean), put(v + i, square);
    }
}
