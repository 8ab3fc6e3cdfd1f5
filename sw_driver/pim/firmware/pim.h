/* Declarations shared by kernels and the runtime. docs/pim-kernels.md specifies the kernels. */
#ifndef PIM_H
#define PIM_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;

#define NAN_BITS 0x7FC00000u
#define INFINITY_BITS 0x7F800000u

/* A kernel in the table: its function, and the number of argument words. */
struct kernel {
    void (*run)(const u32 *a);
    u16 words;
    u16 works; /* 1 if the arguments begin with slots of works for the pools, and their count */
    char name[24];
};

/* Define a kernel as `kernel_NAME` in the table. KERNEL is a plain one; RECURSIVE offers works to
   the pools. */
#define KERNEL(NAME, COUNT) ENTRY(NAME, COUNT, 0)
#define RECURSIVE(NAME, COUNT) ENTRY(NAME, COUNT, 1)
#define ENTRY(NAME, COUNT, WORKS)                                                               \
    static void run_##NAME(const u32 *a __attribute__((unused)));                              \
    __attribute__((section("kernels"), used, aligned(sizeof(void *))))                         \
    const struct kernel kernel_##NAME = {run_##NAME, COUNT, WORKS, #NAME};                     \
    static void run_##NAME(const u32 *a __attribute__((unused)))

extern const struct kernel __start_kernels[], __stop_kernels[];

/* Return the kernel with a number, or 0 if there is none. */
#ifdef __riscv
static inline const struct kernel *entry_of(u32 number) {
    return number < (u32)(__stop_kernels - __start_kernels) ? __start_kernels + number : 0;
}
#else
const struct kernel *entry_of(u32 number);
#endif

/* Causes why a kernel did not run, or failed. */
enum cause { CAUSE_NONE, CAUSE_KERNEL, CAUSE_WORDS, CAUSE_WORK };

/* First failure of the running kernel; a pool's cause is in the bits from 8 on. */
extern u32 failure;

/* Run the kernel with this number in the table; return a cause. */
u32 run(u32 number, u32 words, const u32 *a);

/* Base address of arguments' offsets: the core's windows, or the host's memory. */
#ifdef __riscv
#define memory ((u8 *)0x40000000)
#else
extern u8 *memory;
#endif
#define FLOATS(offset) ((float *)(memory + (offset)))
#define WORDS(offset) ((u32 *)(memory + (offset)))

/* Add a recursive kernel's works to the operations left to do, before it starts. */
void expect(const u32 *slots, u32 count);

/* Run a recursive kernel's works, in consecutive slots of 64 words, on the pools. Return when all
   have completed; set `failure` if one is refused. */
void pools(const u32 *slots, u32 count);

/* Compute a work here; its addresses plus `offset` are the offsets of its operands. */
void compute(const u32 *work, u32 offset);

/* Lock and unlock a mutex at `place`, shared by `cores` cores, with 32 bytes for each core. */
void lock(u32 place, u32 cores);
void unlock(u32 place);

static inline u32 bits(float value) {
    union { float value; u32 bits; } both = {value};
    return both.bits;
}

static inline float number(u32 bits) {
    union { u32 bits; float value; } both = {bits};
    return both.value;
}

static inline int is_nan(u32 bits) { return bits << 1 > INFINITY_BITS << 1; }

/* Store a result; every NaN becomes the same NaN. */
static inline void put(float *place, float value) {
    u32 raw = bits(value);
    *(u32 *)place = is_nan(raw) ? NAN_BITS : raw;
}

/* Return an integer that orders floats like IEEE 754's maximum: -0 below +0, NaN above all. */
static inline i32 order(u32 bits) {
    return is_nan(bits) ? 0x7FFFFFFF : (i32)(bits ^ (u32)((i32)bits >> 31) >> 1);
}

float exponential(float x);
float logarithm(float x);

#endif
