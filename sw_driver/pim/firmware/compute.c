/* Computes a pool's work on a core or on the host, to the bit: sums use the same trees
   (docs/pim-spec.md, "Works" and "Reductions"). */
#include "pim.h"

enum { OPCODE, ALPHA, A = 4, B = 6, RESULT = 10, ROWS = 12, COLUMNS, LENGTH, IMAGES, FILTERS, CHANNELS };
enum { HEIGHT = 18, WIDTH, TAP_ROWS, TAP_COLUMNS, STRIDE, DILATION, TOP, LEFT, STRIDES = 32 };
enum { ADD = 1, MUL, SCALEADD = 4, SUM = 0x10, DOT, MATVEC = 0x20, MATMUL, CONV2D = 0x30 };
enum { OUTER = 4, INDICES = 7, LEVELS = 25 };

/* Indices of the result, then of the sum: channels, rows and columns of taps. */
struct loops {
    u32 extents[INDICES];
    i32 a[INDICES], b[INDICES], result[OUTER];
};

static void set(struct loops *l, u32 index, u32 extent, i32 a, i32 b, i32 result) {
    l->extents[index] = extent, l->a[index] = a, l->b[index] = b;
    if (index < OUTER) l->result[index] = result;
}

static struct loops loops_of(const u32 *w) {
    const i32 *a = (const i32 *)w + STRIDES, *b = a + 4, *r = a + 12;
    i32 stride = (i32)w[STRIDE], dilation = (i32)w[DILATION];
    struct loops l;
    for (u32 i = 0; i < INDICES; i++) set(&l, i, 1, 0, 0, 0);
    switch (w[OPCODE]) {
    case SUM:
    case DOT:
        for (u32 i = 0; i < 2; i++) set(&l, i + 1, w[ROWS + i], a[i + 1], b[i + 1], r[i + 1]);
        set(&l, 0, w[IMAGES], a[0], b[0], r[0]), set(&l, 6, w[LENGTH], a[3], b[3], 0);
        break;
    case MATVEC:
        set(&l, 0, w[ROWS], a[0], 0, r[0]), set(&l, 1, w[COLUMNS], a[1], b[0], r[1]);
        set(&l, 6, w[LENGTH], a[2], b[1], 0);
        break;
    case MATMUL:
        set(&l, 0, w[ROWS], a[0], 0, r[0]), set(&l, 1, w[COLUMNS], 0, b[1], r[1]);
        set(&l, 6, w[LENGTH], a[1], b[0], 0);
        break;
    case CONV2D:
        set(&l, 0, w[IMAGES], a[0], 0, r[0]), set(&l, 1, w[FILTERS], 0, b[0], r[1]);
        set(&l, 2, w[ROWS], a[2] * stride, 0, r[2]), set(&l, 3, w[COLUMNS], a[3] * stride, 0, r[3]);
        set(&l, 4, w[CHANNELS], a[1], b[1], 0), set(&l, 5, w[TAP_ROWS], a[2] * dilation, b[2], 0);
        set(&l, 6, w[TAP_COLUMNS], a[3] * dilation, b[3], 0);
        break;
    default:
        for (u32 i = 0; i < 2; i++) set(&l, i, w[ROWS + i], a[i], b[i], r[i]);
    }
    return l;
}

/* Sum each channel as a tree, and add the channels in order. The first tap is at (top, left). */
static float summed(const u32 *w, const struct loops *l, const float *a, const float *b, i32 top,
                    i32 left) {
    float total = 0, partial[LEVELS];
    for (u32 c = 0; c < l->extents[4]; c++) {
        u32 k = 0, level;
        for (u32 u = 0; u < l->extents[5]; u++)
            for (u32 v = 0; v < l->extents[6]; v++, k++) {
                i32 y = top + (i32)(u * w[DILATION]), x = left + (i32)(v * w[DILATION]);
                int is_inside = w[OPCODE] != CONV2D || ((u32)y < w[HEIGHT] && (u32)x < w[WIDTH]);
                i32 i = (i32)c, j = (i32)u, m = (i32)v;
                float value = is_inside ? a[i * l->a[4] + j * l->a[5] + m * l->a[6]] : 0.0f;
                if (w[OPCODE] != SUM) value = value * b[i * l->b[4] + j * l->b[5] + m * l->b[6]];
                for (level = 0; k >> level & 1; level++) value = partial[level] + value;
                partial[level] = value;
            }
        for (level = 0; !(k >> level & 1);) level++;
        float value = partial[level];
        while (k >> ++level)
            if (k >> level & 1) value = partial[level] + value;
        total = c ? total + value : value;
    }
    return total;
}

void compute(const u32 *w, u32 offset) {
    struct loops l = loops_of(w);
    const float *first = FLOATS(w[A] + offset), *second = FLOATS(w[B] + offset);
    float *result = FLOATS(w[RESULT] + offset);
    const i32 *sa = (const i32 *)w + STRIDES;
    u32 n[OUTER];
    for (n[0] = 0; n[0] < l.extents[0]; n[0]++)
        for (n[1] = 0; n[1] < l.extents[1]; n[1]++)
            for (n[2] = 0; n[2] < l.extents[2]; n[2]++)
                for (n[3] = 0; n[3] < l.extents[3]; n[3]++) {
                    i32 at_a = -(i32)w[TOP] * sa[2] - (i32)w[LEFT] * sa[3], at_b = 0, at = 0;
                    for (u32 i = 0; i < OUTER; i++) {
                        i32 index = (i32)n[i];
                        at_a += index * l.a[i], at_b += index * l.b[i], at += index * l.result[i];
                    }
                    const float *a = first + at_a, *b = second + at_b;
                    float value;
                    switch (w[OPCODE]) {
                    case ADD: value = *a + *b; break;
                    case MUL: value = *a * *b; break;
                    case SCALEADD: value = number(w[ALPHA]) * *a + *b; break;
                    default:
                        value = summed(w, &l, a, b, (i32)(n[2] * w[STRIDE] - w[TOP]),
                                       (i32)(n[3] * w[STRIDE] - w[LEFT]));
                    }
                    put(result + at, value);
                }
}

KERNEL(compute, 3) { /* slots, count, offset minus address of an operand */
    for (u32 i = 0; i < a[1]; i++) compute(WORDS(a[0]) + 64 * i, a[2]);
}
