/* What a core does for its tests: a list of commands, from window 0, one after the other.
 *
 * zig cc -target riscv32-freestanding-none -mcpu=generic_rv32+m -O2 -ffreestanding -nostdlib
 *   -Wl,-T,program.ld program.c -o program.elf; zig objcopy -O binary program.elf program.bin
 */

typedef unsigned int u32;

enum { HEAD = 1, TAIL = 2, IDLE = 3, STOP = 4, REASON = 5 };
static volatile u32 *const own = (volatile u32 *)0x80000000;
/* In window 0: commands of three words, and, not cached, their results. */
static const u32 *const commands = (const u32 *)0x40001000;
static volatile u32 *const results = (volatile u32 *)0xc0004000;

/* Copies the image to where it is linked, puts the stack below it, and goes there. */
__attribute__((naked, section(".start"))) void _start(void)
{
    __asm__("auipc t0, 0\n lui t1, %hi(_start)\n addi t1, t1, %lo(_start)\n"
            "lui t2, %hi(_end)\n addi t2, t2, %lo(_end)\n mv sp, t1\n"
            "1: lw t3, 0(t0)\n sw t3, 0(t1)\n addi t0, t0, 4\n addi t1, t1, 4\n bltu t1, t2, 1b\n"
            "fence.i\n lui t0, %hi(trapped)\n addi t0, t0, %lo(trapped)\n csrw mtvec, t0\n"
            "lui t0, 0x80000\n csrs 0xbc0, t0\n"
            "lui t0, %hi(run)\n jalr x0, %lo(run)(t0)\n");
}

__attribute__((naked, aligned(4))) void trapped(void)
{
    __asm__("lui t0, 0x80000\n csrr t1, mcause\n sw t1, 20(t0)\n csrr t1, mepc\n sw t1, 16(t0)\n");
}

__attribute__((noinline)) static u32 deep(u32 depth)
{
    volatile u32 frame[16];
    frame[0] = depth;
    return depth ? deep(depth - 1) + frame[0] : 0;
}

static u32 command(u32 op, u32 address, u32 value)
{
    u32 result = 0;
    switch (op) {
    case 1: return *(volatile u32 *)address;
    case 2: *(volatile u32 *)address = value; break;
    case 3: return *(volatile unsigned char *)address;
    case 4: *(volatile unsigned char *)address = value; break;
    case 5: return *(volatile unsigned short *)address;
    case 6: *(volatile unsigned short *)address = value; break;
    case 7: __asm__ volatile(".word 0x500f" ::: "memory"); break;
    case 8: while (*(volatile u32 *)address != value) ; break;
    case 9: ((void (*)(void))address)(); break;
    case 10: return deep(value);
    case 11: *(volatile u32 *)address = value; for (;;) ;
    case 12: __asm__(".insn r 0x0b, 1, 0, %0, %1, %2" : "=r"(result) : "r"(address), "r"(value)); break;
    case 13: /* ReLU of the words before `value`, into the place behind them. */
        for (u32 place = address; place != value; place += 4) {
            int x = *(volatile int *)place;
            *(volatile int *)(place + value - address) = x & ~(x >> 31);
        }
        break;
    case 14: /* Words 20 bytes apart, one store after the other. */
        for (u32 number = 0; number < 64; number++)
            *(volatile u32 *)(address + 20 * number) = value + number;
    }
    return result;
}

void run(void)
{
    for (;;) {
        u32 tail = own[TAIL], op;
        own[IDLE] = 1;
        while (own[HEAD] == tail) ;
        own[IDLE] = 0;
        command(7, 0, 0);
        for (u32 number = 0; (op = commands[3 * number]); number++)
            results[number] = command(op, commands[3 * number + 1], commands[3 * number + 2]);
        own[TAIL] = tail + 1;
    }
}
