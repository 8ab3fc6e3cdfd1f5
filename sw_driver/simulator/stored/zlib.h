// The zlib functions that Verilator's waveform writer calls, without compression.
//
// As for LZ4, a fresh machine has no zlib headers. The output is a valid zlib stream (RFC 1950) of
// stored blocks (RFC 1951, 3.2.4).

#ifndef NEARMEM_STORED_ZLIB_H
#define NEARMEM_STORED_ZLIB_H

#include <cstdint>
#include <cstring>

using Bytef = unsigned char;
using uLong = unsigned long;
using uLongf = unsigned long;

constexpr int Z_OK = 0;
constexpr int Z_BUF_ERROR = -5;

inline uLong compressBound(uLong size) { return size + 5 * (size / 65535 + 1) + 6; }

inline int compress2(Bytef* target, uLongf* target_size, const Bytef* source, uLong size, int) {
    if (*target_size < compressBound(size)) return Z_BUF_ERROR;
    Bytef* out = target;
    *out++ = 0x78;
    *out++ = 0x01;
    uint32_t low = 1, high = 0;
    uLong done = 0;
    do {
        const uLong chunk = size - done < 65535 ? size - done : 65535;
        *out++ = done + chunk == size;
        *out++ = chunk & 0xff;
        *out++ = chunk >> 8;
        *out++ = ~chunk & 0xff;
        *out++ = (~chunk >> 8) & 0xff;
        std::memcpy(out, source + done, chunk);
        out += chunk;
        for (uLong i = 0; i < chunk; ++i) {
            low = (low + source[done + i]) % 65521;
            high = (high + low) % 65521;
        }
        done += chunk;
    } while (done < size);
    for (const uint32_t half : {high, low}) {
        *out++ = half >> 8;
        *out++ = half & 0xff;
    }
    *target_size = out - target;
    return Z_OK;
}

#endif
