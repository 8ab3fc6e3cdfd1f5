// Common code of the harnesses of assemblies: `parts.h` has the assembly's parts.
//
// No output of a part depends combinationally on an input. In a cycle, values are first copied
// between the parts. Then each part sees both clock edges; it takes its inputs at the falling edge.

#pragma once

#include <cstdint>
#include <vector>

#include <unistd.h>
#include <verilated.h>

#include "parts.h"

enum Status { kOk = 0, kWaiting = 1, kRefused = 2 };

class Assembly {
public:
    bool own_process() const { return getpid() == process_; }
    uint64_t cycles() const { return cycles_; }

protected:
    Assembly() : parts_(&context_) {}

    ~Assembly() {
        // The thread's context may be that of a deleted model.
        Verilated::threadContextp(&context_);
        parts_.each([](auto& part) { part.final(); });
    }

    // Simulates both edges with connected inputs. Returns true if no output changed when the inputs
    // changed.
    bool step_consistently() {
        const auto outside = free_outputs();
        parts_.each([](auto& part) { edge(part, false); });
        const bool same = parts_.connected() && free_outputs() == outside;
        parts_.each([](auto& part) { edge(part, true); });
        return same;
    }

    std::vector<uint8_t> free_outputs() {
        std::vector<uint8_t> bytes;
        parts_.each_free_output([&](const auto& port) {
            const auto* begin = reinterpret_cast<const uint8_t*>(&port);
            bytes.insert(bytes.end(), begin, begin + sizeof port);
        });
        return bytes;
    }

    const pid_t process_ = getpid();
    uint64_t cycles_ = 0;
    VerilatedContext context_;
    Parts parts_;
};

// Accesses to the AXI4-Lite registers of a part; `tick` simulates a cycle. An access that exceeds
// the limit is given up; no other access may follow it.
template <typename Part, typename Tick>
int read_register(Part& part, uint64_t offset, uint64_t limit, uint64_t* value, Tick&& tick) {
    part.s_axi_araddr = offset;
    part.s_axi_arvalid = 1;
    for (uint64_t i = 0; !part.s_axi_rvalid; ++i) {
        if (i == limit) return kWaiting;
        const bool taken = part.s_axi_arready;
        tick();
        if (taken) part.s_axi_arvalid = 0;
    }
    *value = part.s_axi_rdata;
    const bool refused = part.s_axi_rresp != 0;
    tick();
    return refused ? kRefused : kOk;
}

template <typename Part, typename Tick>
int write_register(Part& part, uint64_t offset, uint64_t limit, uint64_t value, Tick&& tick) {
    part.s_axi_awaddr = offset;
    part.s_axi_wdata = value;
    part.s_axi_awvalid = part.s_axi_wvalid = 1;
    for (uint64_t i = 0; !part.s_axi_bvalid; ++i) {
        if (i == limit) return kWaiting;
        const bool address_taken = part.s_axi_awready, data_taken = part.s_axi_wready;
        tick();
        if (address_taken) part.s_axi_awvalid = 0;
        if (data_taken) part.s_axi_wvalid = 0;
    }
    const bool refused = part.s_axi_bresp != 0;
    tick();
    return refused ? kRefused : kOk;
}
