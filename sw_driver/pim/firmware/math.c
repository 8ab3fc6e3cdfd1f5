/* exp and log of docs/pim-kernels.md: the operations and their order fix the result's bits. */
#include "pim.h"

static const u32 EXP[] = {0x39506967, 0x3AB743CE, 0x3C088908, 0x3D2AA9C1, 0x3E2AAAAA, 0x3F000000};
static const u32 LOG[] = {0x3D9021BB, 0xBDEBD1B8, 0x3DEF251A, 0xBDFE5D4F, 0x3E11E9BF,
                          0xBE2AAE50, 0x3E4CCEAC, 0xBE7FFFFC, 0x3EAAAAAA};
#define LN2_HIGH number(0x3F318000)
#define LN2_LOW number(0xB95E8083)
#define LOG2_E number(0x3FB8AA3B)

static float horner(float x, const u32 *coefficients, u32 count) {
    float result = number(coefficients[0]);
    for (u32 i = 1; i < count; i++) result = result * x + number(coefficients[i]);
    return result;
}

static float power(i32 exponent) { return number((u32)(exponent + 127) << 23); }

float exponential(float x) {
    if (is_nan(bits(x))) return x;
    if (x > 89.0f) return number(INFINITY_BITS);
    if (x < -104.0f) return 0.0f;
    float shifted = x * LOG2_E + 12582912.0f; /* rounds to an integer, in the lowest bits */
    i32 whole = (i32)(bits(shifted) - 0x4B400000u);
    float n = shifted - 12582912.0f;
    float r = (x - n * LN2_HIGH) - n * LN2_LOW;
    float y = (horner(r, EXP, 6) * (r * r) + r) + 1.0f;
    i32 half = whole >> 1;
    return (y * power(half)) * power(whole - half);
}

float logarithm(float x) {
    u32 raw = bits(x);
    if (is_nan(raw)) return x;
    if (raw << 1 == 0) return number(INFINITY_BITS | 0x80000000u);
    if (raw >> 31) return number(NAN_BITS);
    if (raw == INFINITY_BITS) return x;
    i32 exponent = -127;
    if (raw < 0x00800000u) raw = bits(x * 8388608.0f), exponent -= 23;
    raw += 0x3F800000u - 0x3F3504F3u;
    exponent += (i32)(raw >> 23);
    float f = number((raw & 0x7FFFFFu) + 0x3F3504F3u) - 1.0f;
    float e = (float)exponent;
    float z = f * f;
    float y = (horner(f, LOG, 9) * f) * z;
    y = y + e * LN2_LOW;
    y = y - 0.5f * z;
    return (f + y) + e * LN2_HIGH;
}
