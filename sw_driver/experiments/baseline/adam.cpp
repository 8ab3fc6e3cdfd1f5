// Adam on the host's CPU in one pass over p, g, m and v, and the loops that measure what the host's
// memory can do. `library.py` compiles this file twice: "exact" computes what docs/arithmetic.md
// says, to the last bit; with NEARMEM_FAST the compiler may fuse and approximate.
//
// Every function splits its arrays into one contiguous part a thread, in whole lines of 64 bytes.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

constexpr uint64_t kLine = 16;  // values of a line of 64 bytes

struct Constants {
    float lam, beta1, one_minus_beta1, beta2, one_minus_beta2, inv_bc1, inv_bc2, eps, lr;
};

inline float canonical(float x) {
#ifdef NEARMEM_FAST
    return x;
#else
    return x == x ? x : __builtin_nanf("");
#endif
}

inline void step(const Constants& c, float& p, float grad, float& m, float& v) {
    const float g = grad + c.lam * p;
    const float m_next = c.beta1 * m + c.one_minus_beta1 * g;
    const float v_next = c.beta2 * v + c.one_minus_beta2 * (g * g);
    const float u = (m_next * c.inv_bc1) / (std::sqrt(v_next * c.inv_bc2) + c.eps);
    p = canonical(p - c.lr * u);
    m = canonical(m_next);
    v = canonical(v_next);
}

void adam(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v,
          uint64_t n, const Constants& constants) {
    const Constants c = constants;
    for (uint64_t i = 0; i < n; ++i) step(c, p[i], g[i], m[i], v[i]);  // vectorised: plain
}

// Writes a line past the caches, if the instruction set can.
#if defined(__AVX512F__)
constexpr bool kStreams = true;
inline void stream_line(float* to, const float* from) {
    _mm512_stream_ps(to, _mm512_load_ps(from));
}
#elif defined(__AVX__)
constexpr bool kStreams = true;
inline void stream_line(float* to, const float* from) {
    for (int i = 0; i < 16; i += 8) _mm256_stream_ps(to + i, _mm256_load_ps(from + i));
}
#elif defined(__SSE2__)
constexpr bool kStreams = true;
inline void stream_line(float* to, const float* from) {
    for (int i = 0; i < 16; i += 4) _mm_stream_ps(to + i, _mm_load_ps(from + i));
}
#else
constexpr bool kStreams = false;
inline void stream_line(float* to, const float* from) { std::copy(from, from + kLine, to); }
#endif

// What was streamed is written before other threads are told that it is.
inline void stream_fence() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

struct alignas(64) Line {
    float values[kLine];
};

void adam_streaming(float* __restrict p, const float* __restrict g, float* __restrict m,
                    float* __restrict v, uint64_t n, const Constants& constants) {
    const Constants c = constants;
    uint64_t i = 0;
    for (; i + kLine <= n; i += kLine) {
        Line lp, lm, lv;
#pragma GCC unroll 1  // unrolled, it would not be vectorised
        for (uint64_t k = 0; k < kLine; ++k) {  // vectorised: streaming
            lp.values[k] = p[i + k];
            lm.values[k] = m[i + k];
            lv.values[k] = v[i + k];
            step(c, lp.values[k], g[i + k], lm.values[k], lv.values[k]);
        }
        stream_line(p + i, lp.values);
        stream_line(m + i, lm.values);
        stream_line(v + i, lv.values);
    }
    stream_fence();
    adam(p + i, g + i, m + i, v + i, n - i, c);
}

// Compiled so that it does not become memcpy, which decides for itself whether to stream.
void copy(float* __restrict to, const float* __restrict from, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) to[i] = from[i];
}

void triad(float* __restrict to, const float* __restrict a, const float* __restrict b, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) to[i] = a[i] + 3.0f * b[i];
}

// The sum of all bits in each place, without carry: integers, so that it vectorises.
uint32_t read(const float* from, uint64_t n) {
    uint32_t parity = 0;
    for (uint64_t i = 0; i < n; ++i) {
        uint32_t bits;
        std::memcpy(&bits, from + i, sizeof bits);
        parity ^= bits;
    }
    return parity;
}

// to[i] = value(i), streamed.
template <typename Value>
void stream_values(float* to, uint64_t n, Value value) {
    uint64_t i = 0;
    for (; i + kLine <= n; i += kLine) {
        Line line;
        for (uint64_t k = 0; k < kLine; ++k) line.values[k] = value(i + k);
        stream_line(to + i, line.values);
    }
    stream_fence();
    for (; i < n; ++i) to[i] = value(i);
}

// The traffic of Adam with next to no arithmetic.
void update(float* __restrict p, const float* __restrict g, float* __restrict m,
            float* __restrict v, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
        const float x = g[i];
        p[i] += x;
        m[i] += x;
        v[i] += x;
    }
}

// Calls part(begin, count) for each thread's part of n values.
template <typename Part>
void in_parallel(uint64_t n, unsigned threads, Part part) {
    const uint64_t lines = (n + kLine - 1) / kLine;
    const uint64_t each = (lines + threads - 1) / threads * kLine;
    std::vector<std::thread> others;
    for (unsigned t = 1; t < threads; ++t) {
        const uint64_t begin = std::min(n, t * each);
        const uint64_t count = std::min(n - begin, each);
        if (count) others.emplace_back([&part, begin, count] { part(begin, count); });
    }
    part(0, std::min(n, each));
    for (std::thread& other : others) other.join();
}

}  // namespace

extern "C" {

// Whether stores can go past the caches on this machine.
int nb_streams() { return kStreams; }

// Streaming needs p, m and v on lines of 64 bytes.
void nb_adam(float* p, const float* g, float* m, float* v, uint64_t n, const float* constants,
             unsigned threads, int streaming) {
    const float* c = constants;
    const Constants all = {c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]};
    in_parallel(n, threads, [=](uint64_t at, uint64_t count) {
        (streaming ? adam_streaming : adam)(p + at, g + at, m + at, v + at, count, all);
    });
}

void nb_update(float* p, const float* g, float* m, float* v, uint64_t n, unsigned threads) {
    in_parallel(n, threads, [=](uint64_t at, uint64_t count) {
        update(p + at, g + at, m + at, v + at, count);
    });
}

void nb_copy(float* to, const float* from, uint64_t n, unsigned threads, int streaming) {
    in_parallel(n, threads, [=](uint64_t at, uint64_t count) {
        const float* source = from + at;
        if (streaming) {
            stream_values(to + at, count, [=](uint64_t i) { return source[i]; });
        } else {
            copy(to + at, source, count);
        }
    });
}

void nb_triad(float* to, const float* a, const float* b, uint64_t n, unsigned threads,
              int streaming) {
    in_parallel(n, threads, [=](uint64_t at, uint64_t count) {
        const float *x = a + at, *y = b + at;
        if (streaming) {
            stream_values(to + at, count, [=](uint64_t i) { return x[i] + 3.0f * y[i]; });
        } else {
            triad(to + at, x, y, count);
        }
    });
}

uint32_t nb_read(const float* from, uint64_t n, unsigned threads) {
    std::atomic<uint32_t> parity{0};
    in_parallel(n, threads, [&](uint64_t at, uint64_t count) { parity ^= read(from + at, count); });
    return parity;
}

// Repeats a pattern; the first to touch memory decides where it is.
void nb_fill(float* to, const float* pattern, uint64_t n, unsigned threads, uint64_t length) {
    in_parallel(n, threads, [=](uint64_t at, uint64_t count) {
        for (uint64_t i = 0; i < count; ++i) to[at + i] = pattern[(at + i) % length];
    });
}

}  // extern "C"
