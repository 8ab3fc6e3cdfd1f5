/* What the runtime is to kernels, where they run on the host. */
#include "pim.h"

u8 *memory;
void (*host_pools)(const u32 *slots, u32 count);

void pools(const u32 *slots, u32 count) { host_pools(slots, count); }

void lock(u32 place, u32 cores) { (void)place, (void)cores; }
void unlock(u32 place) { (void)place; }

u32 kernel_count(void) { return (u32)(__stop_kernels - __start_kernels); }
const char *kernel_name(u32 number) { return __start_kernels[number].name; }
u32 kernel_words(u32 number) { return __start_kernels[number].words; }
