/* Runtime of a core from reset on: runs the kernels of its queue, and offers works in its ring.
   docs/pim-spec.md has the core's memory map, docs/pim-kernels.md the layout of window 0. */
#include "pim.h"

enum { SLOTS = 16, SLOT_WORDS = 64, DESCRIPTOR_WORDS = 48, OPERATIONS = 52, COUNTS_MASK = 0xFFFF };
enum { QUEUE = 0x8000, RING = 0x9000, COUNTS = 0xA000 }; /* in window 0 */
enum { WINDOWS = 48, FIRST_WINDOW = 1, LAST_WINDOW = 7, COMPLETION = 62, CAUSE = 63 }; /* of a slot */

#define CORE ((volatile u32 *)0x80000000)
enum { ID = 0, HEAD = 1, TAIL = 2, IDLE = 3, STOP = 4, REASON = 5, TIME = 6, MEMORY_TIME = 7, WINDOW = 16 };
enum { REASON_RING = 0x80 }; /* beside the causes of exceptions */
#define RINGS ((volatile u32 *)0x80010800)
enum { RING_BASE = 0, RING_SIZE = 2, RING_HEAD = 4, RING_TAIL = 6, RING_COMPLETIONS = 8, RING_WORDS = 16 };
#define UNCACHED(offset) ((volatile u32 *)(memory + 0x80000000u + (offset)))

/* The first instructions run in window 0 and copy the image to its linked address. After the first
   jump are the offsets of the kernel table's start and end. Exceptions stop the core. */
__asm__(".section .start, \"ax\"\n"
        ".globl _start\n"
        "_start: j 1f\n"
        ".word __start_kernels - _start, __stop_kernels - _start\n"
        "1: auipc t0, 0\n"
        "addi t0, t0, -12\n"
        "lui t1, %hi(_start)\n"
        "addi t1, t1, %lo(_start)\n"
        "lui t2, %hi(image_end)\n"
        "addi t2, t2, %lo(image_end)\n"
        "2: lw t3, 0(t0)\n"
        "sw t3, 0(t1)\n"
        "addi t0, t0, 4\n"
        "addi t1, t1, 4\n"
        "bltu t1, t2, 2b\n"
        ".word 0x100F\n"
        "lui t0, %hi(3f)\n"
        "jalr zero, %lo(3f)(t0)\n"
        "3: lui t0, %hi(4f)\n"
        "addi t0, t0, %lo(4f)\n"
        "csrw mtvec, t0\n"
        "lui sp, %hi(stack_top)\n"
        "addi sp, sp, %lo(stack_top)\n"
        "lui tp, 0x80000\n"
        "csrs 0xBC0, tp\n" /* the float unit */
        "j serve\n"
        ".align 4\n"
        "4: lui t1, 0x80000\n"
        "csrr t0, mcause\n"
        "sw t0, 0x14(t1)\n"
        "csrr t0, mepc\n"
        "sw t0, 0x10(t1)\n"
        "5: j 5b\n"
        ".text\n");

/* Make other masters' writes visible from here on. */
static inline void acquire(void) { __asm__ volatile(".word 0x500F" ::: "memory"); }
/* The core sends earlier writes out before an uncached access; this keeps the compiler's order. */
static inline void release(void) { __asm__ volatile("" ::: "memory"); }

static volatile u32 *ring; /* registers of the core's ring */
static u32 head;           /* descriptors written to the ring */

/* Multiplications done and left, additions done and left. */
static u64 *const counts = (u64 *)(memory + COUNTS);

/* Cycles of the kernel: all, waiting for pools, waiting for cores, other waiting for memory. */
enum { ALL, FOR_POOLS, FOR_CORES, FOR_MEMORY };
static u32 *const cycles = (u32 *)(memory + COUNTS + 32);
static u32 begun, away;

static void begin(void) { begun = CORE[TIME], away = CORE[MEMORY_TIME]; }
static void end(u32 kind) {
    cycles[kind] += CORE[TIME] - begun;
    cycles[FOR_MEMORY] -= CORE[MEMORY_TIME] - away;
}

static u32 completions(void) { return ring[RING_COMPLETIONS] & COUNTS_MASK; }

void expect(const u32 *slots, u32 count) {
    for (u32 i = 0; i < count; i++) {
        const u64 *operations = (const u64 *)(slots + SLOT_WORDS * i + OPERATIONS);
        counts[1] += operations[0], counts[3] += operations[1];
    }
}

void pools(const u32 *slots, u32 count) {
    u32 first = head, done = 0;
    begin();
    while (done < count) {
        for (; head - first < count && head - first - done < SLOTS; head++) {
            const u32 *from = slots + SLOT_WORDS * (head - first);
            u32 *to = WORDS(RING) + SLOT_WORDS * (head % SLOTS);
            for (u32 i = 0; i < DESCRIPTOR_WORDS; i++) to[i] = from[i];
        }
        release();
        ring[RING_HEAD] = head & COUNTS_MASK;
        while ((completions() ^ (first + done)) & COUNTS_MASK) {
            volatile u32 *completion =
                UNCACHED(RING) + SLOT_WORDS * ((first + done++) % SLOTS) + DESCRIPTOR_WORDS;
            u32 place = ((completion[0] >> 16) - first) & COUNTS_MASK, cause = completion[2];
            const u64 *operations = (const u64 *)(slots + SLOT_WORDS * place + OPERATIONS);
            counts[1] -= operations[0], counts[3] -= operations[1];
            if (!cause) counts[0] += operations[0], counts[2] += operations[1];
            else if (!failure) failure = CAUSE_WORK | cause << 8;
        }
    }
    end(FOR_POOLS);
    acquire();
}

/* Barriers and locks: from `place` on each core has 32 bytes, initially zero. */

KERNEL(barrier, 2) { /* place, cores: waits until all cores, from 0 on, have come here */
    volatile u32 *came = UNCACHED(a[0]);
    begin();
    u32 turn = came[8 * (CORE[ID] & 0xFF)] + 1;
    came[8 * (CORE[ID] & 0xFF)] = turn;
    for (u32 i = 0; i < a[1]; i++)
        while ((i32)(came[8 * i] - turn) < 0) {}
    end(FOR_CORES);
    acquire();
}

/* Lamport's bakery: the lowest ticket, and on a tie the lowest core, gets the lock. */
void lock(u32 place, u32 cores) {
    volatile u32 *at = UNCACHED(place);
    u32 mine = CORE[ID] & 0xFF, ticket = 1;
    begin();
    at[8 * mine + 1] = 1;
    for (u32 i = 0; i < cores; i++) {
        u32 other = at[8 * i];
        if (other >= ticket) ticket = other + 1;
    }
    at[8 * mine] = ticket;
    at[8 * mine + 1] = 0;
    for (u32 i = 0; i < cores; i++) {
        while (at[8 * i + 1]) {}
        for (u32 other; (other = at[8 * i]) && (other < ticket || (other == ticket && i < mine));) {}
    }
    end(FOR_CORES);
    acquire();
}

void unlock(u32 place) {
    release();
    UNCACHED(place)[8 * (CORE[ID] & 0xFF)] = 0;
}

KERNEL(lock, 2) { lock(a[0], a[1]); } /* place, cores: holds the lock until `unlock` */
KERNEL(unlock, 1) { unlock(a[0]); }   /* place */

/* Set the ring's address and size. The core starts only while its ring is empty and idle. */
static void place_ring(void) {
    ring[RING_BASE] = (CORE[WINDOW] + RING / 32) / 8;
    ring[RING_SIZE] = 4;
}

__attribute__((noreturn, used)) void serve(void) {
    ring = RINGS + RING_WORDS * ((CORE[ID] & 0xFF) + 1);
    ring[RING_HEAD] = head = ring[RING_TAIL] & COUNTS_MASK;
    place_ring();
    CORE[IDLE] = 1;
    for (u32 taken = 0;; taken++) {
        while (CORE[HEAD] == (taken & COUNTS_MASK)) {}
        CORE[IDLE] = 0;
        u32 at = QUEUE + 4 * SLOT_WORDS * (taken % SLOTS);
        for (u32 i = FIRST_WINDOW; i <= LAST_WINDOW; i++)
            for (u32 j = 0; j < 2; j++)
                CORE[WINDOW + 2 * i + j] = UNCACHED(at)[WINDOWS + 2 * (i - FIRST_WINDOW) + j];
        acquire();
        counts[0] = counts[1] = counts[2] = counts[3] = 0;
        cycles[ALL] = -CORE[TIME], cycles[FOR_POOLS] = cycles[FOR_CORES] = 0;
        cycles[FOR_MEMORY] = -CORE[MEMORY_TIME];
        const u32 *slot = WORDS(at);
        u32 cause = run(slot[0], slot[1], slot + 2);
        cycles[ALL] += CORE[TIME], cycles[FOR_MEMORY] += CORE[MEMORY_TIME];
        /* A user's kernel may have written to the ring's registers. */
        if (((ring[RING_HEAD] ^ head) | (completions() ^ head)) & COUNTS_MASK)
            CORE[REASON] = REASON_RING, CORE[STOP] = 0;
        place_ring();
        release();
        UNCACHED(at)[CAUSE] = cause;
        UNCACHED(at)[COMPLETION] = (taken + 1) & COUNTS_MASK;
        CORE[TAIL] = (taken + 1) & COUNTS_MASK;
        CORE[IDLE] = 1;
    }
}
