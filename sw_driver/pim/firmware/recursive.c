/* Kernels that multiply and add on the pools. Their works are in slots like a ring's, each
   followed by the counts of its operations (docs/pim-kernels.md). */
#include "pim.h"

extern const struct kernel kernel_copy, kernel_fill, kernel_bias, kernel_relu;

u32 failure;

u32 run(u32 number, u32 words, const u32 *a) {
    const struct kernel *k = entry_of(number);
    if (!k) return failure = CAUSE_KERNEL;
    if (words != k->words) return failure = CAUSE_WORDS;
    /* Copied to the stack, so that the cache does not evict them together with other data. */
    u32 own[words + 1];
    for (u32 i = 0; i < words; i++) own[i] = a[i];
    failure = CAUSE_NONE;
    if (k->works) expect(WORDS(own[0]), own[1]);
    k->run(own);
    return failure;
}

RECURSIVE(works, 2) { pools(WORDS(a[0]), a[1]); } /* slots, count */

/* Figure 6 of the paper: tensors change their layout before and after the convolution. A copy with
   an extent of 0 is skipped. */
RECURSIVE(conv2d_backprop_filter, 44) { /* slots, count; copies of x, dy before; of dw after */
    kernel_copy.run(a + 2), kernel_copy.run(a + 16);
    pools(WORDS(a[0]), a[1]);
    kernel_copy.run(a + 30);
}

RECURSIVE(conv2d_backprop_input, 33) { /* slots, count; copy of dy, fill before; copy of dx after */
    kernel_copy.run(a + 2), kernel_fill.run(a + 16);
    pools(WORDS(a[0]), a[1]);
    kernel_copy.run(a + 19);
}

RECURSIVE(matmul_bias_relu, 11) { /* slots, count; bias and relu; a size of 0 skips one */
    pools(WORDS(a[0]), a[1]);
    kernel_bias.run(a + 2), kernel_relu.run(a + 8);
}

KERNEL(program, 2) { /* commands, count; each has a kernel's number, a word count, words */
    const u32 *command = WORDS(a[0]);
    for (u32 i = 0; i < a[1]; i++, command += 2 + command[1])
        if (run(command[0], command[1], command + 2)) return;
}
