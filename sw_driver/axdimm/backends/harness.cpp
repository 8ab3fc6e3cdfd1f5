// Runs the Verilated channels of a module in the calling process.
//
// Each channel is a model of its own with a clock of its own, so that two host threads can run two
// channels at once. What they share is the host link, which carries one line in two fabric cycles;
// each line has its place on one time line, and a channel that asks for a time that another has
// used gets the next free one. Of channels that use the link at once, the one whose simulated time
// is behind goes first; one that has not begun yet is not waited for.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <verilated.h>
#ifdef NEARMEM_WAVE
#include <verilated_fst_c.h>
#endif

#include "Vchannel.h"
#include "Vchannel___024root.h"
#include "command_trace.h"

namespace {

constexpr uint64_t kLinkCyclesPerLine = NEARMEM_LINK_CYCLES_PER_LINE;
constexpr uint64_t kLinkChunkLines = 16;
constexpr unsigned kReadAttempts = 64;
constexpr uint64_t kRoomLimitCycles = 1000000;
constexpr size_t kRememberedUses = 256;
constexpr std::chrono::seconds kEngagedPatience{10};
constexpr size_t kLineBytes = 64;

// As in hw/dram/interface.py.
enum Command { kNop, kAct, kPre, kPrea, kRd, kWr, kRef };
constexpr const char* kCommandNames[] = {"NOP", "ACT", "PRE", "PREA", "RD", "WR", "REF"};

enum Status { kOk = 0, kTimeout = 1, kViolation = 2, kLate = 3, kLost = 4, kFailed = 5 };

class Channel {
public:
    Channel(unsigned index, unsigned read_latency) : index_(index), read_latency_(read_latency) {
        context_.reset(new VerilatedContext);
        context_->randReset(0);
#ifdef NEARMEM_WAVE
        context_->traceEverOn(true);
#endif
        top_.reset(new Vchannel(context_.get(), "channel"));
    }

    ~Channel() {
        close_files();
        // The thread's context may be that of a model that is gone.
        Verilated::threadContextp(context_.get());
        top_->final();
    }

    // Whether all of the trace has been written.
    bool close_files() {
#ifdef NEARMEM_WAVE
        if (wave_) {
            // Readers take no file without a time.
            if (wave_empty_) wave_->dump(2 * now() * half_cycle_ps_);
            wave_->close();
        }
        wave_.reset();
#endif
        return trace_.close();
    }

    bool open_trace(const char* path) { return trace_.open(path, "w"); }

    // Of the module's time from `from` on, before `until`.
    bool open_wave(const char* path, uint64_t half_cycle_ps, uint64_t from, uint64_t until) {
#ifdef NEARMEM_WAVE
        half_cycle_ps_ = half_cycle_ps;
        wave_from_ = from;
        wave_until_ = until;
        wave_.reset(new VerilatedFstC);
        top_->trace(wave_.get(), 99);
        wave_->open(path);
        return wave_->isOpen();
#else
        (void)path, (void)half_cycle_ps, (void)from, (void)until;
        return false;
#endif
    }

    void reset() {
        top_->clk = 0;
        top_->eval();
        top_->rst = 1;
        for (int i = 0; i < 8; ++i) clock();
        top_->rst = 0;
        clock();  // until the reset's register has it: see hw/sim/channel.py
        cycles_ = 0;
    }

    void bare(uint64_t cycles) {
        for (uint64_t i = 0; i < cycles; ++i) clock();
        cycles_ += cycles;
    }

    // One fabric cycle.
    void tick() {
        clock();
        ++cycles_;
        if (__builtin_expect(trace_.on(), 0)) trace_commands();
    }

    void request(uint64_t line, const uint8_t* write_data) {
        top_->link_req_valid = 1;
        top_->link_req_write = write_data != nullptr;
        top_->link_req_line = line;
        if (write_data) std::memcpy(&top_->link_req_data, write_data, kLineBytes);
        tick();
        top_->link_req_valid = 0;
    }

    bool answered() const { return top_->link_rsp_valid; }
    bool late() const { return top_->link_rsp_late; }
    const void* answer() const { return &top_->link_rsp_data; }
    bool ready() const { return top_->link_req_ready; }
    bool read_done() const { return top_->read_done; }
    bool idle() const { return top_->idle; }
    bool violated() const { return top_->violation; }
    unsigned violation_code() const { return top_->violation_code; }
    uint64_t violation_tck() const { return top_->violation_tck; }
    uint64_t cycles() const { return cycles_; }
    unsigned read_latency() const { return read_latency_; }
    uint8_t* storage() {
        return reinterpret_cast<uint8_t*>(&top_->rootp->NEARMEM_STORAGE[0]);
    }

    // Simulated time of the module at which this channel's clock stood at zero.
    uint64_t time_offset = 0;
    uint64_t now() const { return time_offset + cycles_; }

private:
    void clock() {
        top_->clk = 1;
        top_->eval();
        dump(0);
        top_->clk = 0;
        top_->eval();
        dump(1);
    }

    void dump(unsigned half) {
#ifdef NEARMEM_WAVE
        if (wave_ && now() >= wave_from_ && now() < wave_until_) {
            wave_->dump((2 * now() + half) * half_cycle_ps_);
            wave_empty_ = false;
        }
#else
        (void)half;
#endif
    }

    void trace_slot(unsigned slot, unsigned command, unsigned group, unsigned bank,
                    unsigned address) {
        if (command == kNop) return;
        const uint64_t tck = 4 * cycles_ + slot;
        const char* name = kCommandNames[command];
        switch (command) {
            case kAct:
                trace_.activate(tck, index_, name, group, bank, address);
                break;
            case kRd:
            case kWr:
                trace_.column(tck, index_, name, group, bank, address);
                break;
            case kPre:
                trace_.precharge(tck, index_, name, group, bank);
                break;
            default:
                trace_.all(tck, index_, name);
        }
    }

    void trace_commands() {
        trace_slot(0, top_->dram_command_p0, top_->dram_bank_group_p0, top_->dram_bank_p0,
                   top_->dram_address_p0);
        trace_slot(1, top_->dram_command_p1, top_->dram_bank_group_p1, top_->dram_bank_p1,
                   top_->dram_address_p1);
        trace_slot(2, top_->dram_command_p2, top_->dram_bank_group_p2, top_->dram_bank_p2,
                   top_->dram_address_p2);
        trace_slot(3, top_->dram_command_p3, top_->dram_bank_group_p3, top_->dram_bank_p3,
                   top_->dram_address_p3);
    }

    unsigned index_;
    unsigned read_latency_;
    uint64_t cycles_ = 0;
    std::unique_ptr<VerilatedContext> context_;
    std::unique_ptr<Vchannel> top_;
    CommandTrace trace_;
#ifdef NEARMEM_WAVE
    std::unique_ptr<VerilatedFstC> wave_;
    uint64_t half_cycle_ps_ = 0, wave_from_ = 0, wave_until_ = 0;
    bool wave_empty_ = true;
#endif
};

// The link, shared by the channels of a module.
class Link {
public:
    explicit Link(unsigned channels) : users_(channels) {}

    void enter(unsigned channel, uint64_t now) {
        std::lock_guard<std::mutex> lock(mutex_);
        users_[channel].active = true;
        users_[channel].now = now;
        changed_.notify_all();
    }

    // The channel will not ask for the link before `time`: others need not wait for it until then,
    // so that both simulate at once.
    void promise(unsigned channel, uint64_t time) {
        std::lock_guard<std::mutex> lock(mutex_);
        users_[channel].now = std::max(users_[channel].now, time);
        changed_.notify_all();
    }

    void leave(unsigned channel, uint64_t now) {
        std::lock_guard<std::mutex> lock(mutex_);
        users_[channel].active = false;
        users_[channel].now = std::max(users_[channel].now, now);
        changed_.notify_all();
    }

    // The host will use the channel from `time` on: others wait for it as for one that is using the
    // link. Not for ever, since it is the host's program that has to go on.
    void engage(unsigned channel, uint64_t time) {
        std::lock_guard<std::mutex> lock(mutex_);
        users_[channel].engaged = true;
        users_[channel].now = std::max(users_[channel].now, time);
        changed_.notify_all();
    }

    void disengage(unsigned channel) {
        std::lock_guard<std::mutex> lock(mutex_);
        users_[channel].engaged = false;
        changed_.notify_all();
    }

    // Grants up to `lines` lines in a row, as many as the first free time has room for; returns when
    // they start and how many they are. Waits while another channel that is using the link could
    // still ask for an earlier time.
    std::pair<uint64_t, uint64_t> grant(unsigned channel, uint64_t now, uint64_t lines) {
        std::unique_lock<std::mutex> lock(mutex_);
        users_[channel].now = now;
        changed_.notify_all();
        const auto before = [&](unsigned other) {
            const User& user = users_[other];
            return other != channel && (user.active || user.engaged) &&
                   (user.now < now || (user.now == now && other < channel));
        };
        const auto first = [&] {
            for (unsigned other = 0; other < users_.size(); ++other) {
                if (before(other)) return false;
            }
            return true;
        };
        while (!changed_.wait_for(lock, kEngagedPatience, first)) {
            for (unsigned other = 0; other < users_.size(); ++other) {
                if (before(other)) users_[other].engaged = false;
            }
        }
        uint64_t start = now;
        for (unsigned other = 0; other < users_.size(); ++other) {
            if (other != channel) start = std::max(start, users_[other].forgotten_until);
        }
        uint64_t free_until = UINT64_MAX;
        for (bool moved = true; moved;) {
            moved = false;
            free_until = UINT64_MAX;
            for (unsigned other = 0; other < users_.size(); ++other) {
                if (other == channel) continue;
                for (const Use& use : users_[other].uses) {
                    if (use.begin < start + kLinkCyclesPerLine && start < use.end) {
                        start = use.end;
                        moved = true;
                    } else if (use.begin > start) {
                        free_until = std::min(free_until, use.begin);
                    }
                }
            }
        }
        lines = std::min(lines, (free_until - start) / kLinkCyclesPerLine);
        const uint64_t length = kLinkCyclesPerLine * lines;
        User& self = users_[channel];
        append(self.uses, {start, start + length});
        if (self.logging) append(self.log, {start, start + length});
        self.now = start + length;
        forget();
        changed_.notify_all();
        return {start, lines};
    }

    // Keeps what is granted to a channel until it is taken; or no longer, and drops what is there.
    void log(unsigned channel, bool enable) {
        std::lock_guard<std::mutex> lock(mutex_);
        users_[channel].logging = enable;
        users_[channel].log.clear();
    }

    // Moves all of a channel's log to `buffer`, begin and end of each use, if there is room for so
    // many; returns how many there are.
    uint64_t take_log(unsigned channel, uint64_t* buffer, uint64_t capacity) {
        std::lock_guard<std::mutex> lock(mutex_);
        std::vector<Use>& log = users_[channel].log;
        const uint64_t count = log.size();
        if (count <= capacity) {
            for (const Use& use : log) {
                *buffer++ = use.begin;
                *buffer++ = use.end;
            }
            log.clear();
        }
        return count;
    }

private:
    struct Use {
        uint64_t begin, end;
    };
    struct User {
        bool active = false;
        bool engaged = false;
        uint64_t now = 0;
        std::deque<Use> uses;  // in order of time, none touching the next
        uint64_t forgotten_until = 0;
        bool logging = false;
        std::vector<Use> log;  // likewise
    };

    template <typename Uses>
    static void append(Uses& uses, Use use) {
        if (!uses.empty() && uses.back().end == use.begin) {
            uses.back().end = use.end;
        } else {
            uses.push_back(use);
        }
    }

    // Drops what no channel can ask for any more. One that the host leaves alone for long keeps
    // its time; what lies so far back that it exceeds the limit is taken to have been in use.
    void forget() {
        uint64_t earliest = UINT64_MAX;
        for (const User& user : users_) earliest = std::min(earliest, user.now);
        for (User& user : users_) {
            while (!user.uses.empty() &&
                   (user.uses.front().end <= earliest || user.uses.size() > kRememberedUses)) {
                user.forgotten_until = user.uses.front().end;
                user.uses.pop_front();
            }
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<User> users_;
};

struct Module {
    Module(unsigned count, unsigned read_latency) : link(count) {
        for (unsigned i = 0; i < count; ++i) channels.emplace_back(new Channel(i, read_latency));
    }
    std::vector<std::unique_ptr<Channel>> channels;
    Link link;
};

// One use of the link by one channel, from the host's time `not_before`.
class Session {
public:
    Session(Module& module, unsigned index, uint64_t not_before)
        : channel(*module.channels[index]), link_(module.link), index_(index) {
        // A channel's clock stands still while the host leaves it alone.
        if (channel.now() < not_before) channel.time_offset += not_before - channel.now();
        link_.enter(index, channel.now());
    }
    ~Session() { link_.leave(index_, channel.now()); }

    // Waits for the link; returns with the channel's time at the start of the granted lines, which
    // may be fewer than were asked for.
    template <typename Idle>
    uint64_t acquire(uint64_t lines, Idle idle) {
        const auto [start, granted] = link_.grant(index_, channel.now(), lines);
        while (channel.now() < start) idle();
        return granted;
    }

    // See Link::promise; counted from the channel's time.
    void promise(uint64_t cycles) { link_.promise(index_, channel.now() + cycles); }

    // A host that opens rows itself would wait for them; see hw/axdimm/host_link.py.
    template <typename Idle>
    bool wait_for_room(Idle idle) {
        for (uint64_t i = 0; !channel.ready(); ++i) {
            if (i == kRoomLimitCycles) return false;
            idle();
        }
        return true;
    }

    Channel& channel;

private:
    Link& link_;
    unsigned index_;
};

}  // namespace

extern "C" {

Module* nm_open(unsigned channels, unsigned read_latency) {
    Module* module = new Module(channels, read_latency);
    for (auto& channel : module->channels) channel->reset();
    return module;
}

// Whether all of the traces has been written.
int nm_close(Module* module) {
    bool whole = true;
    for (auto& channel : module->channels) whole &= channel->close_files();
    delete module;
    return whole ? kOk : kFailed;
}

int nm_trace(Module* module, unsigned index, const char* path) {
    return module->channels[index]->open_trace(path) ? kOk : kFailed;
}

int nm_wave(Module* module, unsigned index, const char* path, uint64_t half_cycle_ps,
            uint64_t from, uint64_t until) {
    Channel& channel = *module->channels[index];
    return channel.open_wave(path, half_cycle_ps, from, until) ? kOk : kFailed;
}

uint64_t nm_cycles(Module* module, unsigned index) { return module->channels[index]->cycles(); }
uint64_t nm_now(Module* module, unsigned index) { return module->channels[index]->now(); }
uint8_t* nm_storage(Module* module, unsigned index) { return module->channels[index]->storage(); }

// See Link::log.
void nm_link_log(Module* module, unsigned index, int enable) {
    module->link.log(index, enable != 0);
}

// See Link::take_log.
uint64_t nm_link_uses(Module* module, unsigned index, uint64_t* buffer, uint64_t capacity) {
    return module->link.take_log(index, buffer, capacity);
}

int nm_violation(Module* module, unsigned index, uint64_t* tck) {
    const Channel& channel = *module->channels[index];
    *tck = channel.violation_tck();
    return channel.violated() ? static_cast<int>(channel.violation_code()) : -1;
}

void nm_engage(Module* module, unsigned index, uint64_t time) { module->link.engage(index, time); }
void nm_disengage(Module* module, unsigned index) { module->link.disengage(index); }

// Lets time pass.
void nm_idle(Module* module, unsigned index, uint64_t cycles) {
    for (uint64_t i = 0; i < cycles; ++i) module->channels[index]->tick();
}

// Lets time pass until nothing is in flight between host and DRAM.
int nm_settle(Module* module, unsigned index, uint64_t limit) {
    Channel& channel = *module->channels[index];
    for (uint64_t i = 0; !channel.idle(); ++i) {
        if (i == limit) return kTimeout;
        channel.tick();
    }
    return channel.violated() ? kViolation : kOk;
}

// Nothing but the clock, with no look at anything: what the simulator itself can do.
void nm_bare(Module* module, unsigned index, uint64_t cycles) {
    module->channels[index]->bare(cycles);
}

int nm_write(Module* module, unsigned index, uint64_t not_before, uint64_t line,
             const uint8_t* data, uint64_t lines) {
    Session session(*module, index, not_before);
    Channel& channel = session.channel;
    for (uint64_t done = 0; done < lines;) {
        const uint64_t chunk = session.acquire(std::min(kLinkChunkLines, lines - done),
                                               [&] { channel.tick(); });
        for (uint64_t i = 0; i < chunk; ++i, ++done) {
            if (!session.wait_for_room([&] { channel.tick(); })) return kLost;
            channel.request(line + done, data + done * kLineBytes);
            channel.tick();
        }
        if (channel.violated()) return kViolation;
    }
    return kOk;
}

int nm_read(Module* module, unsigned index, uint64_t not_before, uint64_t line, uint8_t* data,
            uint64_t lines, uint64_t* late_reads) {
    Session session(*module, index, not_before);
    Channel& channel = session.channel;
    std::vector<uint64_t> wanted(lines), late;
    for (uint64_t i = 0; i < lines; ++i) wanted[i] = i;
    for (unsigned attempt = 0; attempt < kReadAttempts && !wanted.empty(); ++attempt) {
        uint64_t asked = 0, answered = 0;
        late.clear();
        auto take = [&] {
            if (!channel.answered() || answered == asked) return;
            const uint64_t place = wanted[answered++];
            if (channel.late()) {
                late.push_back(place);
            } else {
                std::memcpy(data + place * kLineBytes, channel.answer(), kLineBytes);
            }
        };
        auto idle = [&] {
            channel.tick();
            take();
        };
        while (asked < wanted.size()) {
            const uint64_t chunk =
                session.acquire(std::min<uint64_t>(kLinkChunkLines, wanted.size() - asked), idle);
            for (uint64_t i = 0; i < chunk; ++i) {
                if (!session.wait_for_room(idle)) return kLost;
                channel.request(line + wanted[asked++], nullptr);
                take();
                idle();
            }
        }
        for (uint64_t i = 0; i < channel.read_latency() + 1 && answered < asked; ++i) idle();
        if (channel.violated()) return kViolation;
        if (answered < asked) return kLost;
        *late_reads += late.size();
        wanted.swap(late);
    }
    return wanted.empty() ? kOk : kLate;
}

// Asks for `count` lines, `interval` cycles apart or as soon as there is room. For each read, the
// cycles until its data reached the arbiter, in time or not; data are not looked at, late reads not
// repeated. Nothing else may use the channel's link.
int nm_stream(Module* module, unsigned index, uint64_t not_before, uint64_t count,
              const uint64_t* lines, const uint8_t* writes, uint64_t interval,
              uint32_t* latencies, uint64_t* late_reads) {
    Session session(*module, index, not_before);
    Channel& channel = session.channel;
    const std::vector<uint8_t> data(kLineBytes, 0x5a);
    std::deque<uint64_t> asked;
    auto take = [&] {
        if (channel.answered() && channel.late()) ++*late_reads;
        if (!channel.read_done() || asked.empty()) return;
        *latencies++ = static_cast<uint32_t>(channel.cycles() - asked.front());
        asked.pop_front();
    };
    auto idle = [&] {
        channel.tick();
        take();
    };
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t began = channel.cycles();
        session.acquire(1, idle);
        if (!session.wait_for_room(idle)) return kLost;
        if (!writes[i]) asked.push_back(channel.cycles());
        channel.request(lines[i], writes[i] ? data.data() : nullptr);
        take();
        while (channel.cycles() - began < interval) idle();
        if (channel.violated()) return kViolation;
    }
    for (uint64_t i = 0; !asked.empty(); ++i) {
        if (i == kRoomLimitCycles) return kLost;
        idle();
    }
    // The last reads are answered, late or not, when their time is over.
    for (uint64_t i = 0; i < channel.read_latency(); ++i) idle();
    return kOk;
}

int nm_poll(Module* module, unsigned index, uint64_t not_before, uint64_t line, uint64_t mask,
            uint64_t value, uint64_t interval, uint64_t timeout, uint64_t* last) {
    Session session(*module, index, not_before);
    Channel& channel = session.channel;
    const uint64_t start = channel.cycles();
    for (;;) {
        session.acquire(1, [&] { channel.tick(); });
        if (!session.wait_for_room([&] { channel.tick(); })) return kLost;
        const uint64_t asked = channel.cycles();
        channel.request(line, nullptr);
        session.promise(channel.read_latency() - 1);
        while (!channel.answered()) {
            channel.tick();
            if (channel.cycles() - asked > 4 * channel.read_latency()) return kLost;
        }
        if (!channel.late()) {
            std::memcpy(last, channel.answer(), sizeof *last);
            if ((*last & mask) == value) return kOk;
        }
        if (channel.cycles() - start >= timeout) return kTimeout;
        session.promise(interval);
        for (uint64_t i = 0; i < interval && !channel.violated(); ++i) channel.tick();
        if (channel.violated()) return kViolation;
    }
}

}  // extern "C"
