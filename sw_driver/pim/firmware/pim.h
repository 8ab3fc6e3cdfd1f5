/* What kernels and the runtime share. docs/pim-kernels.md says what each kernel computes. */
#ifndef PIM_H
#define PIM_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;

#define NAN_BITS 0x7FC00000u
#define INFINITY_BITS 0x7F800000u

/* A kernel in the table: what is called with the arguments, and of how many words these are. */
struct kernel {
    void (*run)(const u32 *a);
    u16 words;
    u16 works; /* whether these begin with the slots of works for the pools, and their count */
    char name[24];
};

/* Defines a kernel and puts it into the table, as `kernel_NAME`: a plain one, or one that has the
   pools do works. */
#define KERNEL(NAME, COUNT) ENTRY(NAME, COUNT, 0)
#define RECURSIVE(NAME, COUNT) ENTRY(NAME, COUNT, 1)
#define ENTRY(NAME, COUNT, WORKS)                                                               \
    static void run_##NAME(const u32 *a);                                                      \
    __attribute__((section("kernels"), used, aligned(sizeof(void *))))                         \
    const struct kernel kernel_##NAME = {run_##NAME, COUNT, WORKS, #NAME};                     \
    static void run_##NAME(const u32 *a)

extern const struct kernel __start_kernels[], __stop_kernels[];

/* The kernel that has a number, 0 if none has. */
#ifdef __riscv
static inline const struct kernel *entry_of(u32 number) {
    return number < (u32)(__stop_kernels - __start_kernels) ? __start_kernels + number : 0;
}
#else
const struct kernel *entry_of(u32 number);
#endif

/* Why a kernel was not run, or did not do what it should. */
enum cause { CAUSE_NONE, CAUSE_KERNEL, CAUSE_WORDS, CAUSE_WORK };

/* The first cause for which the kernel that runs fails, the pool's beside it from bit 8 on. */
extern u32 failure;

/* Runs the kernel that has this place in the table; returns a cause. */
u32 run(u32 number, u32 words, const u32 *a);

/* Where an argument's offset counts from: the core's windows, or a host's memory. */
#ifdef __riscv
#define memory ((u8 *)0x40000000)
#else
extern u8 *memory;
#endif
#define FLOATS(offset) ((float *)(memory + (offset)))
#define WORDS(offset) ((u32 *)(memory + (offset)))

/* Counts a recursive kernel's works as left to do, before it begins. */
void expect(const u32 *slots, u32 count);

/* Has the pools do the works of a recursive kernel, whose slots of 64 words follow each other, until
   all have completed; sets `failure` if one is refused. */
void pools(const u32 *slots, u32 count);

/* Does a work, whose operands are where their addresses and `offset` say. */
void compute(const u32 *work, u32 offset);

/* Keep other cores out, of `cores` in all, that have the same place, of 32 bytes a core. */
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

/* Stores a result, of whose NaNs there is one. */
static inline void put(float *place, float value) {
    u32 raw = bits(value);
    *(u32 *)place = is_nan(raw) ? NAN_BITS : raw;
}

/* Integers in the order that IEEE 754's maximum has: -0 below +0, NaN above all. */
static inline i32 order(u32 bits) {
    return is_nan(bits) ? 0x7FFFFFFF : (i32)(bits ^ (u32)((i32)bits >> 31) >> 1);
}

float exponential(float x);
float logarithm(float x);

#endif
