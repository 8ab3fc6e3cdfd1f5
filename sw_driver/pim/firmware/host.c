/* What the runtime is to kernels, where they run on the host. */
#include "pim.h"

u8 *memory;
u32 host_offset; /* from an address in the stack to its offset in the memory */
void (*host_pools)(const u32 *slots, u32 count);

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
