// Compares the ways to simulate an assembly: see test_parts.py.

#include <algorithm>
#include <cstdint>
#include <vector>

#include <verilated.h>

#include "parts.h"

namespace {

std::vector<uint32_t> outputs(Parts& parts) {
    std::vector<uint32_t> values;
    parts.each([&](auto& part) {
        for (const uint32_t value : {part.o, uint16_t{part.run}, part.edges}) {
            values.push_back(value);
        }
    });
    return values;
}

void together(Parts& parts) {
    parts.connect();
    for (const bool high : {false, true}) {
        parts.each([high](auto& part) { edge(part, high); });
    }
}

template <unsigned kShare> void by_share(Parts& parts, unsigned turn) {
    parts.connect_share<kShare>(turn);
    parts.each_of_share<kShare>([](auto& part) {
        edge(part, false);
        edge(part, true);
    });
    parts.hand_over<kShare>(turn ^ 1);
}

}  // namespace

extern "C" {

// The number of the first cycle that does not end the same in both ways, or `cycles`.
uint64_t nm_same(uint64_t cycles) {
    VerilatedContext context;
    Parts one(&context), two(&context);
    two.hand_over<0>(0);
    two.hand_over<1>(0);
    for (uint64_t cycle = 0; cycle < cycles; ++cycle) {
        together(one);
        // Each of them first, in both turns.
        if (cycle & 2) by_share<0>(two, cycle % 2);
        by_share<1>(two, cycle % 2);
        if (!(cycle & 2)) by_share<0>(two, cycle % 2);
        if (outputs(one) != outputs(two)) return cycle;
    }
    return cycles;
}

// How many different sets of data the parts put out in so many cycles.
uint64_t nm_states(uint64_t cycles) {
    VerilatedContext context;
    Parts parts(&context);
    std::vector<std::vector<uint32_t>> states(cycles);
    for (auto& state : states) {
        together(parts);
        parts.each([&](auto& part) { state.push_back(part.o); });
    }
    std::sort(states.begin(), states.end());
    return std::unique(states.begin(), states.end()) - states.begin();
}

// Cycles in which a part's gated clock had an edge, and those in which it had none.
void nm_edges(uint64_t cycles, uint64_t* edges) {
    VerilatedContext context;
    Parts parts(&context);
    for (uint64_t cycle = 0; cycle < cycles; ++cycle) {
        const auto before = parts.first.edges;
        together(parts);
        ++edges[parts.first.edges == before];
    }
}

}  // extern "C"
