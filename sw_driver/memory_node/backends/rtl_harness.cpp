// Runs Verilated memory-nodes in a ring, with the devices' ends of their links, in the calling
// process.

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "assembly.h"

namespace {

constexpr unsigned kChannels = 4;
constexpr unsigned kLineBytes = 64;

// A flit on a virtual channel, as Python has it.
struct Flit {
    uint8_t channel;
    uint8_t head;
    uint8_t tail;
    uint8_t unused;
    uint8_t payload[kLineBytes];
};

// As in hw/memory_node/flit.py: head, tail, payload from the lowest bit on.
constexpr unsigned kWords = (2 + 8 * kLineBytes + 31) / 32;

template <typename Port> void put(Port& port, const Flit& flit) {
    static_assert(sizeof port == 4 * kWords, "another flit");
    uint32_t payload[kLineBytes / 4];
    std::memcpy(payload, flit.payload, kLineBytes);
    uint32_t words[kWords];
    words[0] = flit.head | flit.tail << 1 | payload[0] << 2;
    for (unsigned i = 1; i < kWords - 1; ++i) words[i] = payload[i - 1] >> 30 | payload[i] << 2;
    words[kWords - 1] = payload[kWords - 2] >> 30;
    std::memcpy(&port, words, sizeof port);
}

template <typename Port> Flit get(const Port& port, unsigned channel) {
    static_assert(sizeof port == 4 * kWords, "another flit");
    uint32_t words[kWords];
    std::memcpy(words, &port, sizeof port);
    uint32_t payload[kLineBytes / 4];
    for (unsigned i = 0; i < kWords - 1; ++i) payload[i] = words[i] >> 2 | words[i + 1] << 30;
    Flit flit = {static_cast<uint8_t>(channel), static_cast<uint8_t>(words[0] & 1),
                 static_cast<uint8_t>(words[0] >> 1 & 1), 0, {}};
    std::memcpy(flit.payload, payload, kLineBytes);
    return flit;
}

// What the device has for a link, and what has come.
struct Link {
    std::array<std::deque<Flit>, kChannels> waiting;
    std::deque<Flit> arrived;
};

class Ring : public Assembly {
public:
    Ring() {
        unsigned links = 0;
        parts_.each_device_port([&](auto& port) {
            ++links;
            port.receive_0_ready = port.receive_1_ready = 1;
            port.receive_2_ready = port.receive_3_ready = 1;
        });
        links_.resize(links);
        parts_.each_memory_node([](auto& node) {
            node.s_axi_wstrb = 0xff;
            node.s_axi_bready = node.s_axi_rready = 1;
        });
    }

    bool violated() {
        bool any = false;
        parts_.each_memory_node([&](auto& node) { any |= node.violation; });
        return any;
    }

    bool dead(unsigned link) {
        unsigned number = 0;
        bool is = false;
        parts_.each_device_port([&](auto& port) { is |= number++ == link && port.dead; });
        return is;
    }

    void send(unsigned link, const Flit* flits, uint64_t count) {
        for (uint64_t i = 0; i < count; ++i) links_[link].waiting[flits[i].channel].push_back(flits[i]);
    }

    uint64_t receive(unsigned link, Flit* flits, uint64_t most) {
        auto& arrived = links_[link].arrived;
        uint64_t count = 0;
        for (; count < most && !arrived.empty(); ++count) {
            flits[count] = arrived.front();
            arrived.pop_front();
        }
        return count;
    }

    uint64_t waiting(unsigned link) const {
        uint64_t flits = 0;
        for (const auto& channel : links_[link].waiting) flits += channel.size();
        return flits;
    }

    // Cuts a link: the device receives nothing from it any more.
    void cut(unsigned link) { cut_.push_back(link); }

    void advance(uint64_t cycles) {
        for (; cycles != 0; --cycles) tick();
    }

    // As advance; returns true if no output changed in a cycle when the inputs did.
    bool consistent(uint64_t cycles) {
        bool same = true;
        for (; cycles != 0; --cycles) {
            cycle([&] { same &= step_consistently(); });
        }
        return same;
    }

    // See read_register and write_register.
    int access(unsigned number, bool write, uint64_t offset, uint64_t limit, uint64_t* value) {
        int status = kRefused;
        unsigned each = 0;
        parts_.each_memory_node([&](auto& node) {
            if (each++ != number) return;
            const auto tick = [this] { this->tick(); };
            status = write ? write_register(node, offset, limit, *value, tick)
                           : read_register(node, offset, limit, value, tick);
        });
        return status;
    }

private:
    // Moves flits over a channel in this cycle, and offers flits for the next one.
    template <typename Port> void before(Port& port, Link& link) {
        take(link, 0, port.receive_0_valid, port.receive_0_payload);
        take(link, 1, port.receive_1_valid, port.receive_1_payload);
        take(link, 2, port.receive_2_valid, port.receive_2_payload);
        take(link, 3, port.receive_3_valid, port.receive_3_payload);
        sent(link, 0, port.transmit_0_valid, port.transmit_0_ready);
        sent(link, 1, port.transmit_1_valid, port.transmit_1_ready);
        sent(link, 2, port.transmit_2_valid, port.transmit_2_ready);
        sent(link, 3, port.transmit_3_valid, port.transmit_3_ready);
    }

    template <typename Port> void after(Port& port, Link& link) {
        offer(link, 0, port.transmit_0_valid, port.transmit_0_payload);
        offer(link, 1, port.transmit_1_valid, port.transmit_1_payload);
        offer(link, 2, port.transmit_2_valid, port.transmit_2_payload);
        offer(link, 3, port.transmit_3_valid, port.transmit_3_payload);
    }

    template <typename Payload>
    void take(Link& link, unsigned channel, bool valid, const Payload& payload) {
        if (valid) link.arrived.push_back(get(payload, channel));
    }

    void sent(Link& link, unsigned channel, bool valid, bool ready) {
        if (valid && ready) link.waiting[channel].pop_front();
    }

    template <typename Valid, typename Payload>
    void offer(Link& link, unsigned channel, Valid& valid, Payload& payload) {
        valid = !link.waiting[channel].empty();
        if (valid) put(payload, link.waiting[channel].front());
    }

    void tick() {
        cycle([this] {
            parts_.each([](auto& part) {
                edge(part, false);
                edge(part, true);
            });
        });
    }

    // Simulates a cycle; `step` evaluates the parts.
    template <typename Step> void cycle(Step&& step) {
        unsigned number = 0;
        parts_.each_device_port([&](auto& port) { before(port, links_[number++]); });
        parts_.connect();
        if (!cut_.empty()) cut_wires();
        step();
        ++cycles_;
        number = 0;
        parts_.each_device_port([&](auto& port) { after(port, links_[number++]); });
    }

    void cut_wires() {
        unsigned number = 0;
        parts_.each_device_port([&](auto& port) {
            for (unsigned link : cut_) {
                if (number == link) port.wire_in_valid = 0;
            }
            ++number;
        });
    }

    std::vector<Link> links_;
    std::vector<unsigned> cut_;
};

}  // namespace

extern "C" {

Ring* nm_open() { return new Ring; }
// In a process that was forked there is nothing to close.
void nm_close(Ring* ring) {
    if (ring->own_process()) delete ring;
}
uint64_t nm_cycles(Ring* ring) { return ring->cycles(); }
int nm_violated(Ring* ring) { return ring->violated(); }
int nm_dead(Ring* ring, unsigned link) { return ring->dead(link); }
void nm_cut(Ring* ring, unsigned link) { ring->cut(link); }
void nm_advance(Ring* ring, uint64_t cycles) { ring->advance(cycles); }
int nm_consistent(Ring* ring, uint64_t cycles) { return ring->consistent(cycles); }
void nm_send(Ring* ring, unsigned link, const void* flits, uint64_t count) {
    ring->send(link, static_cast<const Flit*>(flits), count);
}
uint64_t nm_receive(Ring* ring, unsigned link, void* flits, uint64_t most) {
    return ring->receive(link, static_cast<Flit*>(flits), most);
}
uint64_t nm_waiting(Ring* ring, unsigned link) { return ring->waiting(link); }
int nm_access(Ring* ring, unsigned node, int write, uint64_t offset, uint64_t limit,
              uint64_t* value) {
    return ring->access(node, write != 0, offset, limit, value);
}

}  // extern "C"
