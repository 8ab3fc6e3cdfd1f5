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

// What is worth a second thread.
constexpr unsigned kManyParts = 8;
constexpr uint64_t kManyCycles = 256;

// As in hw/pim/vault/interface.py.
enum Command { kNop, kAct, kRd, kRda, kWr, kWra, kRef };
constexpr const char* kCommandNames[] = {"NOP", "ACT", "RD", "RDA", "WR", "WRA", "REF"};
constexpr unsigned kSlots = 4;

// Bytes of the stack on their way, beat by beat.
struct Transfer {
    bool write;
    uint64_t address;
    uint64_t bytes;
    uint8_t* data;
    uint64_t next;  // bytes that have been asked for
    uint64_t left;  // bytes that are not yet answered
    uint64_t refused;  // beats that were answered with an error
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

    // For that many cycles, one at least, or until an interrupt is pending; says whether one is.
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

    // See read_register and write_register.
    int access(bool write, uint64_t offset, uint64_t limit, uint64_t* value) {
        const auto tick = [this] { this->tick(); };
        return write ? write_register(control_, offset, limit, *value, tick)
                     : read_register(control_, offset, limit, value, tick);
    }

    // A cycle; whether all outputs were in it what they were before the inputs had their values. The
    // host's inputs change from cycle to cycle, but for those that would begin something.
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

    // To be called before the caller goes on.
    template <typename Result> Result flushed(Result result) {
        trace_.flush();
        return result;
    }

    void begin(bool write, uint64_t address, uint64_t bytes, uint8_t* data) {
        transfer_ = {write, address, bytes, data, 0, bytes, 0};
    }

    // Goes on with the transfer for that many cycles at most; if it is posted, until it is asked for.
    int transfer(uint64_t cycles, bool posted) {
        for (uint64_t i = 0; transfer_.left != 0; ++i) {
            const bool asked = transfer_.next == transfer_.bytes && !control_.host_request_valid;
            if (posted && asked) return kOk;
            if (i == cycles) return kWaiting;
            if (transfer_.next < transfer_.bytes && !control_.host_request_valid) ask();
            tick();
        }
        return kOk;
    }

    // Bytes of the transfer that are not yet answered.
    uint64_t left() const { return transfer_.left; }

    // Its beats that no bank holds, until it is abandoned.
    uint64_t refused() const { return transfer_.refused; }

    // Its buffer is not touched any more; answers that still come are thrown away.
    void abandon() {
        transfer_ = {};
        for (Asked& asked : asked_) asked.bytes = 0;
    }

private:
    struct Asked {
        bool waits;
        uint8_t* data;
        unsigned first;  // of the beat's bytes
        unsigned bytes;
    };

    // As many cycles, or fewer if an interrupt is pending; says whether one is. Counts `cycles` down.
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

    // What a thread does in a cycle: what it hands over is taken in the next one.
    template <unsigned kShare> void cycle_share() {
        parts_.connect_share<kShare>(turn_);
        clock_share<kShare>();
        parts_.hand_over<kShare>(turn_ ^ 1);
    }

    // A cycle, of which `step` does what the parts do.
    template <typename Step> void cycle(Step&& step) {
        const bool taken = control_.host_request_valid && control_.host_request_ready;
        if (control_.host_response_valid) answer();
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

    // Offers a request for the transfer's next beat, if a tag is free.
    void ask() {
        const auto tag = std::find_if(asked_.begin(), asked_.end(),
                                      [](const Asked& asked) { return !asked.waits; });
        if (tag == asked_.end()) return;
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
            address / kBeatBytes | static_cast<uint64_t>(tag - asked_.begin()) << address_bits_ |
            static_cast<uint64_t>(transfer_.write) << (address_bits_ + kTagBits);
        std::memcpy(payload + kBeatBytes / 4 + 1, &rest, sizeof rest);
        static_assert(sizeof control_.host_request_payload <= sizeof payload, "addresses too long");
        std::memcpy(&control_.host_request_payload, payload, sizeof control_.host_request_payload);
        control_.host_request_valid = 1;
        transfer_.next += bytes;
    }

    void answer() {
        uint32_t payload[kBeatBytes / 4 + 1];
        static_assert(sizeof control_.host_response_payload == sizeof payload, "another response");
        std::memcpy(payload, &control_.host_response_payload, sizeof payload);
        Asked& asked = asked_[payload[kBeatBytes / 4] % kTags];
        const bool written = payload[kBeatBytes / 4] / kTags & 1;
        const bool error = payload[kBeatBytes / 4] / kTags & 2;
        asked.waits = false;
        if (asked.bytes == 0) return;
        if (!written) {
            std::memcpy(asked.data, reinterpret_cast<uint8_t*>(payload) + asked.first, asked.bytes);
        }
        transfer_.left -= asked.bytes;
        transfer_.refused += error;
        asked.bytes = 0;
    }

    unsigned address_bits_;
    Vpim_control& control_ = parts_.control;
    CommandTrace trace_;
    Transfer transfer_ = {};
    std::array<Asked, kTags> asked_ = {};
    Faster faster_;
    unsigned turn_ = 0;  // changes between two steps only
    std::unique_ptr<SecondThread> second_;  // the last, so that it ends first
};

}  // namespace

extern "C" {

Stack* nm_open(unsigned address_bits) { return new Stack(address_bits); }
// In a process that was forked there is nothing to close: its threads, Verilator's own among them,
// are those of the other one, and to wait for them would not end.
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
