// Runs the Verilated channels of a module in the calling process.
//
// Each channel is a model with its own clock. They share the host link, and the driver decides
// which channel uses it when. A channel has a due time, at which the driver sees it. Its simulation
// may lag behind that, or be ahead if the channel is not accessed before its wake time. While a call
// works on one channel, a second thread simulates others up to the same time. The results do not
// depend on that.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>
#include <verilated.h>
#ifdef NEARMEM_WAVE
#include <verilated_fst_c.h>
#endif

#include "Vchannel.h"
#include "Vchannel___024root.h"
#include "command_trace.h"
#ifdef NEARMEM_FAULTS
#include "flips.h"
#endif
#include "second_thread.h"

namespace {

constexpr uint64_t kLinkCyclesPerLine = NEARMEM_LINK_CYCLES_PER_LINE;
constexpr uint64_t kRoomLimitCycles = 1000000;
constexpr uint64_t kWorthwhileCycles = 8;  // for the second thread
constexpr size_t kLineBytes = 64;

// As in hw/dram/interface.py.
enum Command { kNop, kAct, kPre, kPrea, kRd, kWr, kRef };
constexpr const char* kCommandNames[] = {"NOP", "ACT", "PRE", "PREA", "RD", "WR", "REF"};

enum Status { kOk = 0, kTimeout = 1, kViolation = 2, kLost = 3, kFailed = 4 };

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
        // The thread's context may be that of a deleted model.
        Verilated::threadContextp(context_.get());
        top_->final();
    }

    // Returns true if all of the trace was written.
    bool close_files() {
#ifdef NEARMEM_WAVE
        if (wave_) {
            // Waveform readers reject a file without a time.
            if (wave_empty_) wave_->dump(2 * now() * half_cycle_ps_);
            wave_->close();
        }
        wave_.reset();
#endif
        return trace_.close();
    }

    bool open_trace(const char* path) { return trace_.open(path, "w"); }

    // Times are the module's: from `from` on, before `until`.
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

    // True until a cycle is in the waveform.
    bool wave_empty() const { return wave_empty_; }

    void reset() {
        top_->clk = 0;
        top_->eval();
        top_->rst = 1;
        for (int i = 0; i < 8; ++i) clock();
        top_->rst = 0;
        clock();  // until the register of the reset has the value: see hw/sim/channel.py
        cycles_ = due_ = 0;
    }

    void bare(uint64_t cycles) {
        catch_up();
        for (uint64_t i = 0; i < cycles; ++i) clock();
        cycles_ += cycles;
        due_ = now();
    }

    // Simulates one fabric cycle.
    void tick() {
#ifdef NEARMEM_FAULTS
        flips.tick(now(), *top_);
#endif
        clock();
        ++cycles_;
        if (__builtin_expect(trace_.on(), 0)) trace_commands();
        if (answered() && !asked_.empty()) take_answer();
    }

    // Notes that the channel must be simulated until then, now or later.
    void rest(uint64_t until) { due_ = std::max(until, now()); }
    uint64_t behind() const { return std::max(due_, now()) - now(); }
    void catch_up(uint64_t cycles = UINT64_MAX) {
        for (cycles = std::min(cycles, behind()); cycles != 0; --cycles) tick();
    }

    // The channel is not accessed before that time, until which its clock runs; 0: accessed now.
    void wake(uint64_t time) { wake_ = time; }
    // Returns how far the channel can be simulated beside another one, up to `limit`.
    uint64_t reach(uint64_t limit) const {
        return std::max(due_, std::min(wake_, limit));
    }
    void run_until(uint64_t time) {
        while (now() < time) tick();
    }

    // Skips to that time with the channel's clock stopped.
    void stand_still(uint64_t until) {
        catch_up();
        if (now() < until) time_offset_ += until - now();
        due_ = now();
    }

    // Discards the earlier requests.
    void forget() {
        for (Asked& asked : asked_) asked.target = nullptr;
        late_.clear();
    }

    // Write lines from `source`, or request lines into `target`, from `start` on.
    bool put(uint64_t start, uint64_t line, const uint8_t* source, uint64_t lines) {
        return transfer(start, lines, [&](uint64_t i) {
            request(line + i, source + i * kLineBytes);
        });
    }
    bool ask(uint64_t start, uint64_t line, uint8_t* target, uint64_t lines) {
        return transfer(start, lines, [&](uint64_t i) {
            asked_.push_back({line + i, target + i * kLineBytes});
            request(line + i, nullptr);
        });
    }

    // Returns true if all requests have been answered in time.
    bool await_answers() {
        for (unsigned i = 0; i <= read_latency_ && !asked_.empty(); ++i) tick();
        due_ = now();
        return asked_.empty();
    }

    // Simulates until nothing is in flight between host and DRAM; false after that many cycles.
    bool settle(uint64_t limit) {
        catch_up();
        for (; limit != 0 && !idle(); --limit) tick();
        due_ = now();
        return idle();
    }

    // A host that opens rows itself would wait for them; see hw/axdimm/host_link.py.
    template <typename Idle> bool wait_for_room(Idle idle) {
        for (uint64_t i = 0; !ready(); ++i) {
            if (i == kRoomLimitCycles) return false;
            idle();
        }
        return true;
    }

    // First line and number of lines of each late stretch.
    std::vector<std::pair<uint64_t, uint64_t>>& late_lines() { return late_; }

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

#ifdef NEARMEM_FAULTS
    const char* places() { return flips.places(*context_); }
    Flips flips;
#endif

    // Module times: how far the channel is simulated, and how far it must be.
    uint64_t now() const { return time_offset_ + cycles_; }
    uint64_t due() const { return due_; }
    uint64_t due_cycles() const { return due_ - time_offset_; }
    void arrive() { due_ = now(); }

private:
    struct Asked {
        uint64_t line;
        uint8_t* target;  // null if no longer awaited
    };

    template <typename Request> bool transfer(uint64_t start, uint64_t lines, Request request) {
        while (now() < start) tick();
        bool room = true;
        for (uint64_t i = 0; i < lines && room; ++i) {
            room = wait_for_room([this] { tick(); });
            if (!room) break;
            request(i);
            tick();
        }
        due_ = now();
        return room;
    }

    void take_answer() {
        const Asked asked = asked_.front();
        asked_.pop_front();
        if (!asked.target) return;
        if (!late()) {
            std::memcpy(asked.target, answer(), kLineBytes);
        } else if (!late_.empty() && late_.back().first + late_.back().second == asked.line) {
            ++late_.back().second;
        } else {
            late_.push_back({asked.line, 1});
        }
    }

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
    uint64_t cycles_ = 0, due_ = 0, wake_ = 0;
    uint64_t time_offset_ = 0;  // module time at which the channel's clock was at zero
    std::deque<Asked> asked_;
    std::vector<std::pair<uint64_t, uint64_t>> late_;
    std::unique_ptr<VerilatedContext> context_;
    std::unique_ptr<Vchannel> top_;
    CommandTrace trace_;
#ifdef NEARMEM_WAVE
    std::unique_ptr<VerilatedFstC> wave_;
    uint64_t half_cycle_ps_ = 0, wave_from_ = 0, wave_until_ = 0;
#endif
    bool wave_empty_ = true;
};

class Module {
public:
    Module(unsigned count, unsigned read_latency) {
        for (unsigned i = 0; i < count; ++i) channels_.emplace_back(new Channel(i, read_latency));
    }

    bool own_process() const { return getpid() == process_; }
    unsigned count() const { return channels_.size(); }
    Channel& operator[](unsigned index) { return *channels_[index]; }

    // Does `work`, which simulates a channel for about that many cycles. Meanwhile other channels
    // are simulated up to `limit`, before which no channel is accessed.
    template <typename Work>
    void beside_others(unsigned index, uint64_t cycles, uint64_t limit, Work&& work) {
        behind_.clear();
        if (cycles >= kWorthwhileCycles && cores_ > 1 && own_process()) {
            for (unsigned other = 0; other < count(); ++other) {
                Channel& channel = *channels_[other];
                if (other == index || channel.reach(limit) < channel.now() + kWorthwhileCycles) {
                    continue;
                }
                behind_.push_back(&channel);
            }
        }
        if (behind_.empty()) {
            work();
            return;
        }
        limit_ = limit;
        if (!helper_) {
            helper_.reset(new Helper(
                [this](unsigned part) { behind_[part]->run_until(behind_[part]->reach(limit_)); }));
        }
        helper_->share(behind_.size(), work);
    }

private:
    const pid_t process_ = getpid();
    const unsigned cores_ = std::thread::hardware_concurrency();
    std::vector<std::unique_ptr<Channel>> channels_;
    std::vector<Channel*> behind_;
    uint64_t limit_ = 0;
    std::unique_ptr<Helper> helper_;  // the last, so that it ends first
};

// What has become of a call. A board's DRAM checks nothing, so neither does a model with faults.
int status(const Channel& channel, bool answered) {
#ifndef NEARMEM_FAULTS
    if (channel.violated()) return kViolation;
#else
    (void)channel;
#endif
    return answered ? kOk : kLost;
}

}  // namespace

extern "C" {

Module* nm_open(unsigned channels, unsigned read_latency) {
    Module* module = new Module(channels, read_latency);
    for (unsigned index = 0; index < channels; ++index) (*module)[index].reset();
    return module;
}

// Whether all of the traces has been written. In a process that was forked there is nothing to
// close: the second thread is the other one's.
int nm_close(Module* module) {
    if (!module->own_process()) return kOk;
    bool whole = true;
    for (unsigned index = 0; index < module->count(); ++index) {
        whole &= (*module)[index].close_files();
    }
    delete module;
    return whole ? kOk : kFailed;
}

int nm_trace(Module* module, unsigned index, const char* path) {
    return (*module)[index].open_trace(path) ? kOk : kFailed;
}

int nm_wave(Module* module, unsigned index, const char* path, uint64_t half_cycle_ps,
            uint64_t from, uint64_t until) {
    return (*module)[index].open_wave(path, half_cycle_ps, from, until) ? kOk : kFailed;
}

int nm_wave_empty(Module* module, unsigned index) { return (*module)[index].wave_empty(); }

uint64_t nm_cycles(Module* module, unsigned index) { return (*module)[index].due_cycles(); }
uint64_t nm_now(Module* module, unsigned index) { return (*module)[index].due(); }
uint64_t nm_behind(Module* module, unsigned index) { return (*module)[index].behind(); }
uint8_t* nm_storage(Module* module, unsigned index) { return (*module)[index].storage(); }

int nm_violation(Module* module, unsigned index, uint64_t* tck) {
    const Channel& channel = (*module)[index];
    *tck = channel.violation_tck();
    return channel.violated() ? static_cast<int>(channel.violation_code()) : -1;
}

// See the functions of Channel.
void nm_rest(Module* module, unsigned index, uint64_t until) { (*module)[index].rest(until); }
void nm_wake(Module* module, unsigned index, uint64_t time) { (*module)[index].wake(time); }
void nm_stand_still(Module* module, unsigned index, uint64_t until) {
    (*module)[index].stand_still(until);
}
void nm_forget(Module* module, unsigned index) { (*module)[index].forget(); }

int nm_catch_up(Module* module, unsigned index, uint64_t cycles) {
    Channel& channel = (*module)[index];
    cycles = std::min(cycles, channel.behind());
    module->beside_others(index, cycles, channel.now() + cycles, [&] { channel.catch_up(cycles); });
    return status(channel, true);
}

int nm_settle(Module* module, unsigned index, uint64_t limit) {
    Channel& channel = (*module)[index];
    if (!channel.settle(limit)) return kTimeout;
    return status(channel, true);
}

// Nothing but the clock, with no look at anything: what the simulator itself can do.
void nm_bare(Module* module, unsigned index, uint64_t cycles) { (*module)[index].bare(cycles); }

int nm_put(Module* module, unsigned index, uint64_t start, uint64_t line, const uint8_t* source,
           uint64_t lines) {
    Channel& channel = (*module)[index];
    const uint64_t cycles = start - channel.now() + kLinkCyclesPerLine * lines;
    bool done = false;
    module->beside_others(index, cycles, channel.due(),
                          [&] { done = channel.put(start, line, source, lines); });
    return status(channel, done);
}

int nm_ask(Module* module, unsigned index, uint64_t start, uint64_t line, uint8_t* target,
           uint64_t lines) {
    Channel& channel = (*module)[index];
    const uint64_t cycles = start - channel.now() + kLinkCyclesPerLine * lines;
    bool done = false;
    module->beside_others(index, cycles, channel.due(),
                          [&] { done = channel.ask(start, line, target, lines); });
    return status(channel, done);
}

// Also says how many stretches of lines came late, see nm_late.
int nm_answers(Module* module, unsigned index, uint64_t* late) {
    Channel& channel = (*module)[index];
    const bool done = channel.await_answers();
    *late = channel.late_lines().size();
    return status(channel, done);
}

// First and number of the lines of each stretch; forgets them.
void nm_late(Module* module, unsigned index, uint64_t* lines) {
    for (const auto& [first, count] : (*module)[index].late_lines()) {
        *lines++ = first;
        *lines++ = count;
    }
    (*module)[index].late_lines().clear();
}

// Asks for `count` lines, `interval` cycles apart or as soon as there is room. For each read, the
// cycles until its data reached the arbiter, in time or not; data are not looked at, late reads not
// repeated. Nothing else may use the link.
int nm_stream(Module* module, unsigned index, uint64_t count, const uint64_t* lines,
              const uint8_t* writes, uint64_t interval, uint32_t* latencies,
              uint64_t* late_reads) {
    Channel& channel = (*module)[index];
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
        channel.arrive();
        take();
    };
    channel.catch_up();
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t began = channel.cycles();
        if (!channel.wait_for_room(idle)) return kLost;
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
    // The last reads are answered, late or not, after the read latency.
    for (uint64_t i = 0; i < channel.read_latency(); ++i) idle();
    return kOk;
}

// See the functions of Flips; only in a model that is built for them.
char* nm_places(Module* module, unsigned index) {
#ifdef NEARMEM_FAULTS
    return const_cast<char*>((*module)[index].places());
#else
    (void)module, (void)index;
    return nullptr;
#endif
}

void nm_flip(Module* module, unsigned index, uint64_t time, unsigned place, uint64_t word,
             unsigned bit) {
#ifdef NEARMEM_FAULTS
    (*module)[index].places();
    (*module)[index].flips.plan(time, place, word, bit);
#else
    (void)module, (void)index, (void)time, (void)place, (void)word, (void)bit;
#endif
}

int nm_flipped(Module* module, unsigned index) {
#ifdef NEARMEM_FAULTS
    return (*module)[index].flips.state();
#else
    (void)module, (void)index;
    return 0;
#endif
}

}  // extern "C"
