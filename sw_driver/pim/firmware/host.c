/* Runtime of kernels on the host. */
#include "pim.h"

#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define UNCHECKED __attribute__((no_sanitize_address, no_instrument_function, noinline))

u8 *memory;
u32 host_offset; /* offset in `memory` minus address in the stack */
void (*host_pools)(const u32 *slots, u32 count);

/* Numbers of the kernels here, indexed by their number in a core's program; null: the same. */
const u16 *host_numbers;
u32 host_numbers_count;

void expect(const u32 *slots, u32 count) { (void)slots, (void)count; }

/* Run works of recursive kernels on the host, unless it has pools. */
void pools(const u32 *slots, u32 count) {
    if (host_pools) host_pools(slots, count);
    else
        for (u32 i = 0; i < count; i++) compute(slots + 64 * i, host_offset);
}

void lock(u32 place, u32 cores) { (void)place, (void)cores; }
void unlock(u32 place) { (void)place; }

/* Any thread may call these, even while a kernel runs in another thread. */
UNCHECKED u32 library_count(void) { return (u32)(__stop_kernels - __start_kernels); }
UNCHECKED const char *library_name(u32 number) { return __start_kernels[number].name; }
UNCHECKED u32 library_words(u32 number) { return __start_kernels[number].words; }

UNCHECKED const struct kernel *entry_of(u32 number) {
    if (host_numbers) number = number < host_numbers_count ? host_numbers[number] : ~0u;
    return number < library_count() ? __start_kernels + number : 0;
}

/* Bounds. Compiled kernels call a function below before every access, as for Linux's kernel
   address sanitizer. They do so before every division, as for the undefined behaviour sanitizer,
   and at every call, as for a profile. A kernel may access its spans, part of the stack, and the
   library's memory except the state here. The processor itself stops a stack overflow, a trap and
   a quotient that does not fit; these come as signals. */

enum { MOST_WORDS = 64, STACK_BYTES = 1 << 16, SIGNAL_STACK_BYTES = 1 << 16 };
enum { FAULT = 0x100, READ = FAULT, WRITTEN, STACK, DIVISION, QUOTIENT, TRAP, UNMAPPED, ARRAY, ENDED };

struct span { u64 start, stop; u32 is_written, unused; }; /* host addresses */

extern const u8 __ehdr_start[] __attribute__((visibility("hidden")));
extern const u8 _end[] __attribute__((visibility("hidden")));

static const struct { int signal, fault; } signals[] = {
    {SIGFPE, QUOTIENT}, {SIGILL, TRAP}, {SIGTRAP, TRAP}, {SIGSEGV, UNMAPPED}, {SIGBUS, UNMAPPED},
};
enum { SIGNALS = sizeof signals / sizeof *signals };

u64 host_place; /* address of a fault */

static struct {
    const struct span *spans; /* null: nothing is checked */
    u32 span_count, cause;
    const u8 *stack_top;
    long thread; /* the kernel's thread */
    sigjmp_buf before;
    struct sigaction old[SIGNALS];
    stack_t old_stack;
    u8 stack[SIGNAL_STACK_BYTES];
} state;

UNCHECKED __attribute__((noreturn)) static void stop(int fault) { siglongjmp(state.before, fault); }

UNCHECKED static void check(u64 place, u64 size, int is_written) {
    if (!state.spans) return;
    u64 stack = (u64)__builtin_frame_address(0), top = (u64)state.stack_top, end = place + size;
    if (top - stack > STACK_BYTES) stop(STACK);
    if (place >= stack && place <= end && end <= top) return;
    host_place = place;
    for (u32 i = 0; i < state.span_count; i++) {
        const struct span *at = state.spans + i;
        if (place < at->start || place > at->stop || at->is_written < (u32)is_written) continue;
        if (place <= end && end <= at->stop) return;
        if (at->stop > host_place) host_place = at->stop; /* the first byte outside of the span */
    }
    int is_mine = place < (u64)(&state + 1) && end > (u64)&state;
    if (place >= (u64)__ehdr_start && place <= end && end <= (u64)_end && !is_mine) return;
    stop(is_written ? WRITTEN : READ);
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
    if (!state.spans) __builtin_trap();
    stop(DIVISION);
}

/* Replacements of C library functions, with checks. */
#define OWN UNCHECKED __attribute__((visibility("hidden")))
OWN void __stack_chk_fail(void) {
    if (!state.spans) __builtin_trap();
    stop(ARRAY);
}
OWN void abort(void) { __builtin_trap(); }
OWN void *memmove(void *to, const void *from, size_t count) {
    u8 *t = to;
    const u8 *f = from;
    check((u64)f, count, 0), check((u64)t, count, 1);
    if (t <= f)
        for (size_t i = 0; i < count; i++) t[i] = f[i];
    else
        while (count--) t[count] = f[count];
    return to;
}
OWN void *memcpy(void *to, const void *from, size_t count) { return memmove(to, from, count); }
OWN void *memset(void *to, int value, size_t count) {
    check((u64)to, count, 1);
    for (size_t i = 0; i < count; i++) ((u8 *)to)[i] = (u8)value;
    return to;
}
OWN int memcmp(const void *one, const void *other, size_t count) {
    const u8 *a = one, *b = other;
    check((u64)a, count, 0), check((u64)b, count, 0);
    for (size_t i = 0; i < count; i++)
        if (a[i] != b[i]) return a[i] - b[i];
    return 0;
}

/* End the kernel on a signal of its own thread; else restore the previous handler. */
UNCHECKED static void caught(int signal, siginfo_t *info, void *context) {
    (void)context;
    u32 i = 0;
    while (i < SIGNALS - 1 && signals[i].signal != signal) i++;
    if (state.spans && info->si_code > 0 && syscall(SYS_gettid) == state.thread) {
        host_place = (u64)info->si_addr;
        stop(signals[i].fault);
    }
    sigaction(signal, state.old + i, 0);
    if (info->si_code <= 0) raise(signal); /* a signal that was sent does not repeat by itself */
}

/* The kernel's stack is below this frame. It may be corrupt, so this function never returns. */
UNCHECKED __attribute__((noreturn)) static void begin(u32 number, u32 words, const u32 *a) {
    u32 own[MOST_WORDS];
    for (u32 i = 0; i < words; i++) own[i] = a[i];
    state.stack_top = (const u8 *)__builtin_frame_address(0);
    state.cause = run(number, words, own);
    stop(ENDED);
}

/* Run a kernel that may access the spans `all`; return a cause, or a fault. */
UNCHECKED u32 host_run(u32 number, u32 words, const u32 *a, const struct span *all, u32 count) {
    if (words > MOST_WORDS) return CAUSE_WORDS;
    stack_t stack = {.ss_sp = state.stack, .ss_size = sizeof state.stack};
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    state.thread = syscall(SYS_gettid);
    sigaltstack(&stack, &state.old_stack);
    for (u32 i = 0; i < SIGNALS; i++) sigaction(signals[i].signal, &action, state.old + i);
    int fault = sigsetjmp(state.before, 1);
    if (!fault) {
        state.span_count = count, state.spans = all;
        begin(number, words, a);
    }
    state.spans = 0;
    for (u32 i = 0; i < SIGNALS; i++) sigaction(signals[i].signal, state.old + i, 0);
    sigaltstack(&state.old_stack, 0);
    return fault == ENDED ? state.cause : (u32)fault;
}
