// Runs the Verilated pool, part by part, with its vaults in the calling process.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "assembly.h"
#include "command_trace.h"
#include "second_thread.h"

namespace {

constexpr uint64_t kBeatBytes = 32;
constexpr unsigned kTagBits = 5;
constexpr unsigned kTags = 1 << kTagBits;

// Fewest parts and cycles that make a second thread pay off.
constexpr unsigned kManyParts = 8;
constexpr uint64_t kManyCycles = 256;

// As in hw/pim/vault/interface.py.
enum Command { kNop, kAct, kRd, kRda, kWr, kWra, kRef };
constexpr const char* kCommandNames[] = {"NOP", "ACT", "RD", "RDA", "WR", "WRA", "REF"};
constexpr unsigned kSlots = 4;

// A read or write of the stack in flight, beat by beat.
struct Transfer {
    bool write;
    uint64_t address;
    uint64_t bytes;
    uint8_t* data;
    uint64_t next;  // bytes requested so far
    uint64_t left;  // bytes without a response
    uint64_t refused;  // beats with an error response
};

class Stack : public Assembly {
public:
    explicit Stack(unsigned address_bits) : address_bits_(address_bits) {
        control_.s_axi_wstrb = 0xff;
        control_.s_axi_bready = 1;
        control_.s_axi_rready = 1;
        control_.host_response_ready = 1;
    }

    bool violated() {
        bool any = false;
        parts_.each_pim_vault([&](auto& vault) { any |= vault.violation; });
        return any;
    }

    bool open_trace(const char* path) { return trace_.open(path, "a"); }
    bool close_trace() { return trace_.close(); }

    // Advance by `cycles`, or, after one at least, until an interrupt is pending; return if it is.
    bool advance(uint64_t cycles) {
        const auto alone = [this] { tick(); };
        if (Parts::kCount < kManyParts || cycles < kManyCycles || !own_process()) {
            return run(cycles, alone);
        }
        if (!second_) {
            second_ = std::make_unique<SecondThread>([this] {
                Verilated::threadContextp(&context_);
                cycle_share<1>();
            });
        }
        bool interrupted = false;
        while (cycles != 0 && !interrupted) {
            uint64_t next = cycles;
            const bool both = faster_.choose(next);
            uint64_t left = next;
            if (both) {
                parts_.hand_over<0>(turn_);
                parts_.hand_over<1>(turn_);
                second_->begin();
            }
            interrupted = both ? run(left, [this] { tick_with_second(); }) : run(left, alone);
            if (both) second_->end();
            faster_.took(next - left);
            cycles -= next - left;
        }
        return interrupted;
    }

    // Read or write a register; see read_register and write_register.
    int access(bool write, uint64_t offset, uint64_t limit, uint64_t* value) {
        const auto tick = [this] { this->tick(); };
        return write ? write_register(control_, offset, limit, *value, tick)
                     : read_register(control_, offset, limit, value, tick);
    }

    // Run a cycle; return true if the outputs do not change when the inputs get their values. The
    // host's inputs change in every cycle, except those that would start an operation.
    bool consistent() {
        bool same = false;
        const bool ready = cycles_ % 2 != 0;
        control_.s_axi_bready = control_.s_axi_rready = control_.host_response_ready = ready;
        control_.s_axi_awaddr = control_.s_axi_araddr = ready ? 8 : 0;
        control_.s_axi_wdata = ready;
        cycle([&] {
            parts_.connect();
            same = step_consistently();
        });
        control_.s_axi_bready = control_.s_axi_rready = control_.host_response_ready = 1;
        return same;
    }

    // Flush the trace; call this before control returns to Python.
    template <typename Result> Result flushed(Result result) {
        trace_.flush();
        return result;
    }

    void begin(bool write, uint64_t address, uint64_t bytes, uint8_t* data) {
        transfer_ = {write, address, bytes, data, 0, bytes, 0};
    }

    // Continue the transfer for `cycles` at most; a posted one ends once all beats are requested.
    int transfer(uint64_t cycles, bool posted) {
        for (uint64_t i = 0; transfer_.left != 0; ++i) {
            const bool issued = transfer_.next == transfer_.bytes && !control_.host_request_valid;
            if (posted && issued) return kOk;
            if (i == cycles) return kWaiting;
            if (transfer_.next < transfer_.bytes && !control_.host_request_valid) request();
            tick();
        }
        return kOk;
    }

    // Bytes of the transfer without a response.
    uint64_t left() const { return transfer_.left; }

    // Beats of the transfer that no bank holds; 0 once the transfer is abandoned.
    uint64_t refused() const { return transfer_.refused; }

    // Stop using the transfer's buffer, and drop responses that are still in flight.
    void abandon() {
        transfer_ = {};
        for (Request& request : requests_) request.bytes = 0;
    }

private:
    struct Request {
        bool waits;
        uint8_t* data;
        unsigned first;  // first byte of the beat
        unsigned bytes;
    };

    // Run up to `cycles`, counting them down; return true once an interrupt is pending.
    template <typename Tick> bool run(uint64_t& cycles, Tick&& tick) {
        while (cycles != 0) {
            tick();
            --cycles;
            if (control_.irq) return true;
        }
        return false;
    }

    template <unsigned kShare> void clock_share() {
        parts_.each_of_share<kShare>([](auto& part) {
            edge(part, false);
            edge(part, true);
        });
    }

    // Run a thread's share of a cycle; the other thread takes its outputs in the next cycle.
    template <unsigned kShare> void cycle_share() {
        parts_.connect_share<kShare>(turn_);
        clock_share<kShare>();
        parts_.hand_over<kShare>(turn_ ^ 1);
    }

    // Run a cycle; `step` clocks the parts.
    template <typename Step> void cycle(Step&& step) {
        const bool taken = control_.host_request_valid && control_.host_request_ready;
        if (control_.host_response_valid) take_response();
        if (__builtin_expect(trace_.on(), 0)) trace_commands();
        step();
        ++cycles_;
        if (taken) control_.host_request_valid = 0;
    }

    void trace_commands() {
        unsigned number = 0;
        parts_.each_pim_vault([&](auto& vault) {
            trace_slot(number, 0, vault.commands_command_p0, vault.commands_layer_p0,
                       vault.commands_bank_p0, vault.commands_address_p0);
            trace_slot(number, 1, vault.commands_command_p1, vault.commands_layer_p1,
                       vault.commands_bank_p1, vault.commands_address_p1);
            trace_slot(number, 2, vault.commands_command_p2, vault.commands_layer_p2,
                       vault.commands_bank_p2, vault.commands_address_p2);
            trace_slot(number, 3, vault.commands_command_p3, vault.commands_layer_p3,
                       vault.commands_bank_p3, vault.commands_address_p3);
            ++number;
        });
    }

    void trace_slot(unsigned vault, unsigned slot, unsigned command, unsigned layer, unsigned bank,
                    unsigned address) {
        if (command == kNop) return;
        const uint64_t tck = kSlots * cycles_ + slot;
        const char* name = kCommandNames[command];
        if (command == kAct) trace_.activate(tck, vault, name, layer, bank, address);
        else if (command == kRef) trace_.all(tck, vault, name);
        else trace_.column(tck, vault, name, layer, bank, address);
    }

    void tick() {
        cycle([this] {
            parts_.connect();
            clock_share<0>();
            clock_share<1>();
        });
    }

    void tick_with_second() {
        cycle([this] {
            second_->step([this] { cycle_share<0>(); });
            turn_ ^= 1;
        });
    }

    // Offer a request for the transfer's next beat, if a tag is free.
    void request() {
        const auto tag = std::find_if(requests_.begin(), requests_.end(),
                                      [](const Request& request) { return !request.waits; });
        if (tag == requests_.end()) return;
        const uint64_t address = transfer_.address + transfer_.next;
        const unsigned first = address % kBeatBytes;
        const unsigned bytes =
            std::min<uint64_t>(kBeatBytes - first, transfer_.bytes - transfer_.next);
        *tag = {true, transfer_.data + transfer_.next, first, bytes};
        // As in hw/pim/memory/memory_port.py: data, strobes, then the rest.
        uint32_t payload[kBeatBytes / 4 + 3] = {};
        if (transfer_.write) {
            std::memcpy(reinterpret_cast<uint8_t*>(payload) + first, tag->data, bytes);
            const uint64_t strobes = ((uint64_t{1} << bytes) - 1) << first;
            payload[kBeatBytes / 4] = static_cast<uint32_t>(strobes);
        }
        const uint64_t rest =
            address / kBeatBytes | static_cast<uint64_t>(tag - requests_.begin()) << address_bits_ |
            static_cast<uint64_t>(transfer_.write) << (address_bits_ + kTagBits);
        std::memcpy(payload + kBeatBytes / 4 + 1, &rest, sizeof rest);
        static_assert(sizeof control_.host_request_payload <= sizeof payload, "addresses too long");
        std::memcpy(&control_.host_request_payload, payload, sizeof control_.host_request_payload);
        control_.host_request_valid = 1;
        transfer_.next += bytes;
    }

    void take_response() {
        uint32_t payload[kBeatBytes / 4 + 1];
        static_assert(sizeof control_.host_response_payload == sizeof payload, "another response");
        std::memcpy(payload, &control_.host_response_payload, sizeof payload);
        Request& request = requests_[payload[kBeatBytes / 4] % kTags];
        const bool written = payload[kBeatBytes / 4] / kTags & 1;
        const bool error = payload[kBeatBytes / 4] / kTags & 2;
        request.waits = false;
        if (request.bytes == 0) return;
        if (!written) {
            const auto* beat = reinterpret_cast<uint8_t*>(payload);
            std::memcpy(request.data, beat + request.first, request.bytes);
        }
        transfer_.left -= request.bytes;
        transfer_.refused += error;
        request.bytes = 0;
    }

    unsigned address_bits_;
    Vpim_control& control_ = parts_.control;
    CommandTrace trace_;
    Transfer transfer_ = {};
    std::array<Request, kTags> requests_ = {};
    Faster faster_;
    unsigned turn_ = 0;  // changes only between two steps
    std::unique_ptr<SecondThread> second_;  // last member, so that it is destroyed first
};

}  // namespace

extern "C" {

Stack* nm_open(unsigned address_bits) { return new Stack(address_bits); }
// A forked process has nothing to close. The threads, Verilator's among them, belong to its parent,
// so waiting for them would never end.
int nm_close(Stack* stack) {
    if (!stack->own_process()) return kOk;
    const bool traced = stack->close_trace();
    delete stack;
    return traced ? kOk : kRefused;
}
uint64_t nm_cycles(Stack* stack) { return stack->cycles(); }
int nm_consistent(Stack* stack) { return stack->consistent(); }
int nm_trace(Stack* stack, const char* path) { return stack->open_trace(path); }
int nm_violated(Stack* stack) { return stack->violated(); }
int nm_advance(Stack* stack, uint64_t cycles) { return stack->flushed(stack->advance(cycles)); }

int nm_access(Stack* stack, int write, uint64_t offset, uint64_t limit, uint64_t* value) {
    return stack->flushed(stack->access(write != 0, offset, limit, value));
}

void nm_begin(Stack* stack, int write, uint64_t address, uint64_t bytes, uint8_t* data) {
    stack->begin(write != 0, address, bytes, data);
}

int nm_transfer(Stack* stack, uint64_t cycles, int posted) {
    return stack->flushed(stack->transfer(cycles, posted != 0));
}
uint64_t nm_left(Stack* stack) { return stack->left(); }
uint64_t nm_refused(Stack* stack) { return stack->refused(); }
void nm_abandon(Stack* stack) { stack->abandon(); }

}  // extern "C"
