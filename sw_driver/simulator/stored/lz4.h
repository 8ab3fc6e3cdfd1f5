// The two LZ4 functions that Verilator's waveform writer calls, without compression.
//
// A fresh machine has no LZ4 headers, and no package of the Python index contains them. The output
// is a valid LZ4 block of literals only (LZ4 block format, "last literals").

#ifndef NEARMEM_STORED_LZ4_H
#define NEARMEM_STORED_LZ4_H

#include <cstring>

inline int LZ4_compressBound(int size) { return size + size / 255 + 16; }

inline int LZ4_compress_default(const char* source, char* target, int size, int capacity) {
    if (capacity < LZ4_compressBound(size)) return 0;
    char* out = target;
    *out++ = static_cast<char>((size < 15 ? size : 15) << 4);
    if (size >= 15) {
        int rest = size - 15;
        for (; rest >= 255; rest -= 255) *out++ = static_cast<char>(255);
        *out++ = static_cast<char>(rest);
    }
    std::memcpy(out, source, size);
    return static_cast<int>(out - target) + size;
}

#endif
