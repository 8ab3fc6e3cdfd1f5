/* What the runtime is to kernels, where they run on the host. */
#include "pim.h"

#include <setjmp.h>

#define UNCHECKED __attribute__((no_sanitize_address, no_instrument_function, noinline))

u8 *memory;
u32 host_offset; /* from an address in the stack to its offset in the memory */
void (*host_pools)(const u32 *slots, u32 count);

/* The kernels' numbers here, by those that a program of a core's has; none: they are the same. */
const u16 *host_numbers;
u32 host_numbers_count;

void expect(const u32 *slots, u32 count) { (void)slots, (void)count; }

/* Works of recursive kernels are the host's, too, unless it has pools. */
void pools(const u32 *slots, u32 count) {
    if (host_pools) host_pools(slots, count);
    else
        for (u32 i = 0; i < count; i++) compute(slots + 64 * i, host_offset);
}

void lock(u32 place, u32 cores) { (void)place, (void)cores; }
void unlock(u32 place) { (void)place; }

u32 kernel_count(void) { return (u32)(__stop_kernels - __start_kernels); }
const char *kernel_name(u32 number) { return __start_kernels[number].name; }
u32 kernel_words(u32 number) { return __start_kernels[number].words; }

UNCHECKED const struct kernel *kernel_of(u32 number) {
    if (host_numbers) number = number < host_numbers_count ? host_numbers[number] : ~0u;
    return number < kernel_count() ? __start_kernels + number : 0;
}

/* Bounds. The compiler has each access of a kernel call one of the functions below first, as it
   does for the kernel address sanitizer of Linux, and each division, as for that of undefined
   behaviour, and each call, as for a profile. A kernel may touch its spans, some of the stack and
   what is the library's. */

enum { MOST_WORDS = 64, STACK_BYTES = 1 << 16 };
enum { FAULT = 0x100, READ = FAULT, WRITTEN, STACK, DIVISION };

struct span { u64 start, stop; u32 is_written, unused; }; /* addresses of the host */

extern const u8 __ehdr_start[] __attribute__((visibility("hidden")));
extern const u8 _end[] __attribute__((visibility("hidden")));

u64 host_place; /* of a fault */
static const struct span *spans; /* none: nothing is checked */
static u32 span_count;
static const u8 *stack_top;
static jmp_buf before;

UNCHECKED static void check(u64 place, u64 size, int is_written) {
    if (!spans) return;
    u64 stack = (u64)__builtin_frame_address(0), top = (u64)stack_top, stop = place + size;
    if (top - stack > STACK_BYTES) longjmp(before, STACK);
    if (place >= stack && stop <= top) return;
    for (u32 i = 0; i < span_count; i++)
        if (place >= spans[i].start && stop <= spans[i].stop && spans[i].is_written >= (u32)is_written)
            return;
    if (place >= (u64)__ehdr_start && stop <= (u64)_end) return;
    host_place = place;
    longjmp(before, is_written ? WRITTEN : READ);
}

#define ACCESSES(SIZE)                                                                         \
    UNCHECKED void __asan_load##SIZE##_noabort(u64 place) { check(place, SIZE, 0); }           \
    UNCHECKED void __asan_store##SIZE##_noabort(u64 place) { check(place, SIZE, 1); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
UNCHECKED void __asan_loadN_noabort(u64 place, u64 size) { check(place, size, 0); }
UNCHECKED void __asan_storeN_noabort(u64 place, u64 size) { check(place, size, 1); }
UNCHECKED void __asan_handle_no_return(void) {}
UNCHECKED void __cyg_profile_func_enter(void *function, void *caller) {
    (void)function, (void)caller;
    check((u64)__builtin_frame_address(0), 0, 0);
}
UNCHECKED void __cyg_profile_func_exit(void *function, void *caller) { (void)function, (void)caller; }
UNCHECKED void __ubsan_handle_divrem_overflow_abort(void) {
    if (!spans) __builtin_trap();
    longjmp(before, DIVISION);
}

/* Runs a kernel, which may touch these spans; returns a cause, or a fault. */
UNCHECKED u32 host_run(u32 number, u32 words, const u32 *a, const struct span *all, u32 count) {
    u32 own[MOST_WORDS];
    if (words > MOST_WORDS) return CAUSE_WORDS;
    for (u32 i = 0; i < words; i++) own[i] = a[i];
    stack_top = (const u8 *)__builtin_frame_address(0);
    span_count = count, spans = all;
    u32 cause = (u32)setjmp(before);
    if (!cause) cause = run(number, words, own);
    spans = 0;
    return cause;
}
