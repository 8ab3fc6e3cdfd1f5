// Sides of streams and AXI4 memories for cocotb benches, without Python at every clock.
//
// streams.py and axi_memory.py say what they do; agents.py loads this into the simulator. An agent
// acts for an object of Python: it reads that object's attributes and fills its lists. Every error
// is an exception of Python, which `fail` raises in the test.

#include <vpi_user.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

// Of Python's stable interface: its headers are not everywhere where Python is.
extern "C" {
typedef struct _object PyObject;
extern PyObject *PyExc_AssertionError, *PyExc_AttributeError, *PyExc_OverflowError, _Py_NoneStruct;
using Py = PyObject*;
int PyGILState_Ensure(), PyObject_IsTrue(Py), PySequence_Contains(Py, Py), PyList_Append(Py, Py);
void PyGILState_Release(int), Py_IncRef(Py), Py_DecRef(Py), PyErr_SetString(Py, const char*),
    PyErr_Fetch(Py*, Py*, Py*), PyErr_NormalizeException(Py*, Py*, Py*), PyErr_Print();
Py PyErr_Occurred(), PyUnicode_InternFromString(const char*), PyObject_GetAttr(Py, Py),
    PyObject_CallFunction(Py, const char*, ...), PyDict_GetItemWithError(Py, Py),
    PyObject_CallMethod(Py, const char*, const char*, ...), PySequence_GetItem(Py, intptr_t),
    PyLong_FromUnsignedLongLong(unsigned long long), PyLong_FromString(const char*, char**, int);
intptr_t PyObject_Size(Py);
double PyFloat_AsDouble(Py);
const char* PyBytes_AsString(Py);
unsigned long long PyLong_AsUnsignedLongLong(Py);
}

namespace {

using std::to_string;
using Text = const std::string&;
using Words = std::vector<uint32_t>;  // a value of any width, its lowest word first
using Payload = std::vector<Words>;   // of the signals of a channel

struct Raised {};  // an exception of Python is set

[[noreturn]] void raise(Py kind, Text text) {
    PyErr_SetString(kind, text.c_str());
    throw Raised();
}

[[noreturn]] void violated(Text text) { raise(PyExc_AssertionError, text); }

template <typename Number>
Number sound(Number result) {  // of a function of Python's that says by -1 that it has failed
    if (result == Number(-1) && PyErr_Occurred()) throw Raised();
    return result;
}

struct Object {  // a reference to an object of Python
    explicit Object(Py owned) : object_(owned) {
        if (!owned) throw Raised();
    }
    Object(const Object&) = delete;
    ~Object() { Py_DecRef(object_); }
    operator Py() const { return object_; }
    Py object_;
};

struct Name {  // of an attribute or a key
    explicit Name(const char* text) : key(PyUnicode_InternFromString(text)) {}
    Object of(Py object) const { return Object(PyObject_GetAttr(object, key)); }
    Py key;
};

bool truth(Py called) { return sound(PyObject_IsTrue(Object(called))); }

std::string hex(const Words& value) {
    std::string digits;
    for (size_t index = value.size(); index--;) {
        char word[9];
        snprintf(word, sizeof word, "%08x", value[index]);
        digits += word;
    }
    return "0x" + digits.substr(std::min(digits.find_first_not_of('0'), digits.size() - 1));
}

Object number(uint64_t value) { return Object(PyLong_FromUnsignedLongLong(value)); }

Object number(const Words& value) {
    if (value.size() == 1) return number(value[0]);
    return Object(PyLong_FromString(hex(value).c_str(), nullptr, 16));
}

struct Signal {
    explicit Signal(Text name)
        : name_(name), handle(vpi_handle_by_name(const_cast<char*>(name.c_str()), nullptr)) {
        if (!handle) raise(PyExc_AttributeError, "there is no signal " + name);
        bits = vpi_get(vpiSize, handle);
        shown_.resize((bits + 31) / 32);
    }
    uint32_t operator()() const { return now()[0].aval; }
    Words read() const {
        const s_vpi_vecval* words = now();
        Words value(shown_.size());
        for (size_t index = 0; index < value.size(); ++index) value[index] = words[index].aval;
        return value;
    }
    /// What an agent drives.
    bool high() const { return shown_[0]; }
    /// Changes after the edge, as by a write of cocotb's.
    void drive(const Words& value) {
        if (driven_ && value == shown_) return;
        driven_ = true;
        shown_ = value;
        std::vector<s_vpi_vecval> words;
        for (uint32_t word : value) words.push_back({word, 0});
        s_vpi_value change{vpiVectorVal, {}};
        change.value.vector = words.data();
        vpi_put_value(handle, &change, nullptr, vpiInertialDelay);
    }
    void drive(bool value) {
        if (!driven_ || value != high()) drive(Words{value});
    }
    /// A number of Python as a value of the signal.
    Words fitted(Py number) const {
        Words value(shown_.size());
        const int bytes = 4 * value.size();
        const Object text(PyObject_CallMethod(number, "to_bytes", "is", bytes, "little"));
        std::memcpy(value.data(), PyBytes_AsString(text), bytes);
        if (bits % 32 && value.back() >> bits % 32) {
            raise(PyExc_OverflowError, hex(value) + " for " + name_);
        }
        return value;
    }

    const s_vpi_vecval* now() const {
        s_vpi_value value{vpiVectorVal, {}};
        vpi_get_value(handle, &value);
        return value.value.vector;
    }

    std::string name_;
    Words shown_;
    bool driven_ = false;
    vpiHandle handle;
    unsigned bits;
};

struct Agent {
    Agent(Py owner, uint64_t seed) : owner_(owner), random_(seed) { Py_IncRef(owner); }
    virtual ~Agent() = default;
    virtual void step() = 0;
    bool stopped() const { return !owner_; }
    void stop() {
        if (owner_) Py_DecRef(owner_);
        owner_ = nullptr;
    }

    bool chance(Py share) {
        const double probability = sound(PyFloat_AsDouble(share));
        return probability > 0 && std::uniform_real_distribution<>()(random_) < probability;
    }
    bool pauses() {
        static const Name pause("pause");
        return chance(pause.of(owner_));
    }
    /// To a list that is an attribute of the owner.
    void append(const Name& list, Py item) { sound(PyList_Append(list.of(owner_), item)); }

    Py owner_;
    std::mt19937_64 random_;
};

/// Signals that go together, of which the agent is the sender or the receiver.
struct Channel {
    Channel(Text port, const char* name, std::initializer_list<const char*> names, bool sends)
        : key(name), valid(port + name + "valid"), ready(port + name + "ready") {
        for (const char* part : names) parts.emplace_back(port + name + part);
        const std::string place = port.substr(0, port.size() - 1);
        label = *name ? name : place.substr(place.rfind('.') + 1);
        (sends ? valid : ready).drive(false);
    }
    /// What is there for a receiver; checks that it stays while it waits.
    std::optional<Payload> look() {
        if (!valid()) {
            if (waiting) violated(label + " was withdrawn");
            return {};
        }
        Payload payload;
        for (const Signal& part : parts) payload.push_back(part.read());
        if (waiting && *waiting != payload) {
            const std::string before = label + " changed while it waited: " + text(*waiting);
            violated(before + " to " + text(payload));
        }
        waiting.reset();
        if (!ready.high()) waiting = payload;
        return payload;
    }
    static std::string text(const Payload& payload) {
        std::string parts;
        for (const Words& part : payload) parts += (parts.empty() ? "(" : ", ") + hex(part);
        return parts + ")";
    }
    /// What a sender offered is taken.
    bool moves() const { return valid.high() && ready(); }
    void send(const Payload& payload) {
        for (size_t part = 0; part < parts.size(); ++part) parts[part].drive(payload[part]);
        valid.drive(true);
    }

    Name key;
    Signal valid, ready;
    std::vector<Signal> parts;
    std::string label;
    std::optional<Payload> waiting;
};

struct Source : Agent {
    Source(Py owner, uint64_t seed, Text port)
        : Agent(owner, seed), channel_(port, "", {"payload"}, true) {}

    void step() override {
        static const Name queue_name("queue");
        const bool moved = channel_.moves();
        if (channel_.valid.high() && !moved) return;
        const Object queue = queue_name.of(owner_);
        if (moved) Object(PyObject_CallMethod(queue, "popleft", nullptr));
        if (!sound(PyObject_Size(queue)) || pauses()) return channel_.valid.drive(false);
        channel_.send({channel_.parts[0].fitted(Object(PySequence_GetItem(queue, 0)))});
    }

    Channel channel_;
};

struct Sink : Agent {
    Sink(Py owner, uint64_t seed, Text port)
        : Agent(owner, seed), channel_(port, "", {"payload"}, false) {}

    void step() override {
        static const Name taken("taken"), cycles("cycles");
        ++cycle_;
        const std::optional<Payload> payload = channel_.look();
        if (payload && channel_.ready.high()) {
            append(taken, number(payload->front()));
            append(cycles, number(cycle_));
        }
        channel_.ready.drive(!pauses());
    }

    Channel channel_;
    uint64_t cycle_ = 0;
};

struct Burst {
    uint32_t ident;
    uint64_t address, beats, cycle, done = 0;
    uint32_t response = 0;
};

struct Memory : Agent {
    Memory(Py owner, uint64_t seed, Text port, Text reset, uint8_t* bytes, uint64_t size,
           Text habit, uint64_t latency, uint32_t ids, bool shared)
        : Agent(owner, seed), bytes_(bytes), habit_(habit), size_(size), latency_(latency),
          ids_(ids), shared_(shared),
          ar_(port, "ar", {"id", "addr", "len", "size", "burst"}, false),
          aw_(port, "aw", {"id", "addr", "len", "size", "burst"}, false),
          w_(port, "w", {"data", "strb", "last"}, false),
          r_(port, "r", {"id", "data", "resp", "last"}, true),
          b_(port, "b", {"id", "resp"}, true), beat_bytes_(w_.parts[0].bits / 8) {
        if (!reset.empty()) reset_.emplace(reset);
    }
    bool quiet() const {
        return to_read_.empty() && to_write_.empty() && data_.empty() && to_answer_.empty();
    }
    void step() override {
        static const Name reads("reads"), writes("writes");
        ++cycle;
        if (reset_ && (*reset_)()) return forget();
        take_address(ar_, to_read_, reads);
        writes_ += take_address(aw_, to_write_, writes);
        store();
        take_data();
        store();
        read();
        answer();
        say_ready();
    }
    void forget() {
        for (Channel* channel : {&ar_, &aw_, &w_}) {
            channel->waiting.reset();
            channel->ready.drive(false);
        }
        for (Channel* channel : {&r_, &b_}) channel->valid.drive(false);
        to_read_.clear();
        to_write_.clear();
        data_.clear();
        to_answer_.clear();
    }

    bool pause(const Channel& channel) {
        static const Name stalls("stalls");
        const Object shares = stalls.of(owner_);
        if (!sound(PyObject_Size(shares))) return false;
        Py share = PyDict_GetItemWithError(shares, channel.key.key);
        if (!share && PyErr_Occurred()) throw Raised();
        return share && chance(share);
    }

    /// The response to `beats` beats of a burst from `first` on.
    uint32_t response(const Name& question, uint64_t index, const Burst& burst, uint64_t first,
                      uint64_t beats) {
        static const Name failing("failing"), error("error");
        const Object fails = question.of(owner_), lines = failing.of(owner_);
        bool failed = fails != &_Py_NoneStruct && truth(PyObject_CallFunction(fails, "K", index));
        for (uint64_t beat = first; beat < first + beats && !failed; ++beat) {
            failed = sound(PySequence_Contains(lines, number(burst.address + beat * beat_bytes_)));
        }
        return failed ? sound(PyLong_AsUnsignedLongLong(error.of(owner_))) : 0;
    }

    bool take_address(Channel& channel, std::list<Burst>& queue, const Name& log) {
        const std::optional<Payload> payload = channel.look();
        if (!payload) return false;
        const auto part = [&](int index) { return (*payload)[index][0]; };
        const uint32_t ident = part(0), size = part(3), type = part(4);
        const Words& place = (*payload)[1];
        const uint64_t address = place[0] | (place.size() > 1 ? uint64_t{place[1]} << 32 : 0);
        const uint64_t beats = part(2) + 1, end = address + beats * beat_bytes_;
        std::string wrong;
        if (ident >= ids_) wrong = "has ID " + to_string(ident);
        else if (type != 1) wrong = "is of type " + to_string(type);
        else if (1u << size != beat_bytes_) wrong = "has size " + to_string(size);
        else if (address % beat_bytes_) wrong = "is not aligned";
        else if (address / 4096 != (end - 1) / 4096) wrong = "crosses 4 KB";
        else if (end > size_) wrong = "leaves the memory of " + to_string(size_) + " bytes";
        if (!wrong.empty()) {
            const std::string burst = " burst of " + to_string(beats) + " beats at " + hex(place);
            violated(channel.label + burst + " " + wrong);
        }
        if (!channel.ready.high()) return false;
        queue.push_back({ident, address, beats, cycle});
        const Object burst(
            PyObject_CallMethod(owner_, "_burst", "KKKI", address, beats, cycle, ident));
        append(log, burst);
        return true;
    }

    /// All data of a burst are here, and its address is not.
    bool whole_burst_ahead() const { return !data_.empty() && data_.back()[2][0]; }

    void take_data() {
        static const Name cycles("write_cycles");
        std::optional<Payload> beat = w_.look();
        if (!beat) return;
        const bool offered = aw_.waiting && !whole_burst_ahead();
        if (to_write_.empty() && !offered) violated("write data before its address");
        if (!w_.ready.high()) return;
        append(cycles, number(cycle));
        data_.push_back(std::move(*beat));
    }

    /// Writes the data whose address is here.
    void store() {
        static const Name fails("write_error");
        while (!data_.empty() && !to_write_.empty()) {
            const Payload beat = std::move(data_.front());
            data_.pop_front();
            Burst& burst = to_write_.front();
            uint8_t* place = bytes_ + burst.address + burst.done++ * beat_bytes_;
            for (unsigned lane = 0; lane < beat_bytes_; ++lane) {
                const bool strobe = beat[1][lane / 32] >> lane % 32 & 1;
                if (strobe) place[lane] = beat[0][lane / 4] >> lane % 4 * 8;
            }
            const bool last = beat[2][0];
            if (last != (burst.done == burst.beats)) {
                violated("WLAST is " + to_string(last) + " at beat " + to_string(burst.done));
            }
            if (!last) continue;
            burst.cycle = cycle;
            burst.response = response(fails, writes_ - to_write_.size(), burst, 0, burst.beats);
            to_answer_.splice(to_answer_.end(), to_write_, to_write_.begin());
        }
    }

    void read() {
        static const Name cycles("read_cycles"), fails("read_error");
        if (r_.moves()) {
            append(cycles, number(cycle));
            ++beats_read_;
            if (++reading_->done == reading_->beats) to_read_.erase(reading_);
        } else if (r_.valid.high()) {
            return;
        }
        if (to_read_.empty() || cycle - to_read_.front().cycle < latency_ || pause(r_)) {
            return r_.valid.drive(false);
        }
        reading_ = choose(to_read_);
        const Burst& burst = *reading_;
        Words data(beat_bytes_ / 4);
        std::memcpy(data.data(), bytes_ + burst.address + burst.done * beat_bytes_, beat_bytes_);
        const uint32_t failed = response(fails, beats_read_, burst, burst.done, 1);
        r_.send({{burst.ident}, data, {failed}, {burst.done == burst.beats - 1}});
    }

    void answer() {
        if (b_.moves()) ++answers;
        else if (b_.valid.high()) return;
        if (to_answer_.empty() || cycle - to_answer_.front().cycle < latency_ || pause(b_)) {
            return b_.valid.drive(false);
        }
        const auto chosen = choose(to_answer_);
        b_.send({{chosen->ident}, {chosen->response}});
        to_answer_.erase(chosen);
    }

    /// Whose turn it is: of the oldest of each ID one at random.
    std::list<Burst>::iterator choose(std::list<Burst>& queue) {
        std::vector<std::list<Burst>::iterator> oldest;
        std::set<uint32_t> seen;
        for (auto entry = queue.begin(); entry != queue.end() && seen.size() < ids_; ++entry) {
            if (seen.insert(entry->ident).second) oldest.push_back(entry);
        }
        return oldest[random_() % oldest.size()];
    }

    /// Says what will be taken in the next cycle; what is offered now, is then, too.
    void say_ready() {
        bool read = true, write = true, beat = !to_write_.empty();
        if (habit_ == "on_valid") {
            read = ar_.waiting.has_value();
            write = aw_.waiting.has_value();
            beat = beat && w_.waiting;
        } else if (habit_ == "data_first") {
            write = whole_burst_ahead();
            beat = !write;
        } else if (habit_ == "together") {
            write = !beat && aw_.waiting && w_.waiting;
        }
        write = write && !pause(aw_);
        beat = (beat && !pause(w_)) || (write && habit_ == "together");
        ar_.ready.drive(read && !pause(ar_));
        aw_.ready.drive(write);
        w_.ready.drive(beat && !(shared_ && r_.valid.high()));
    }

    uint8_t* bytes_;
    std::string habit_;
    uint64_t size_, latency_, cycle = 0, answers = 0, writes_ = 0, beats_read_ = 0;
    uint32_t ids_;
    bool shared_;
    Channel ar_, aw_, w_, r_, b_;
    unsigned beat_bytes_;
    std::optional<Signal> reset_;
    std::list<Burst> to_read_, to_write_, to_answer_;
    std::list<Burst>::iterator reading_;
    std::deque<Payload> data_;
};

/// Has agents act at each rising edge, on what is there before it, as long as `test` is not done.
struct Clock {
    Clock(Text name, Py test, Py fail) : signal_(name), test_(test), fail_(fail) {
        Py_IncRef(test);
        Py_IncRef(fail);
        s_vpi_time time{vpiSimTime, 0, 0, 0};
        s_vpi_value value{vpiIntVal, {}};
        s_cb_data data{cbValueChange, changed, signal_.handle, &time, &value, 0,
                       reinterpret_cast<PLI_BYTE8*>(this)};
        callback_ = vpi_register_cb(&data);
    }
    template <typename Side, typename... Arguments>
    Agent* add(Arguments... arguments) {
        agents_.push_back(std::make_unique<Side>(arguments...));
        return agents_.back().get();
    }

    static PLI_INT32 changed(p_cb_data data) {
        auto& clock = *reinterpret_cast<Clock*>(data->user_data);
        if (!clock.signal_()) return 0;
        const int held = PyGILState_Ensure();
        try {
            if (truth(PyObject_CallMethod(clock.test_, "done", nullptr))) clock.end();
            for (auto& agent : clock.agents_) {
                if (!agent->stopped()) agent->step();
            }
        } catch (Raised) {
            Py type, error, trace;
            PyErr_Fetch(&type, &error, &trace);
            PyErr_NormalizeException(&type, &error, &trace);
            if (!PyObject_CallFunction(clock.fail_, "O", error)) PyErr_Print();
            clock.end();
        }
        PyGILState_Release(held);
        return 0;
    }
    /// The agents themselves stay: Python may ask for what they have counted.
    void end() {
        vpi_remove_cb(callback_);
        for (auto& agent : agents_) agent->stop();
    }

    Signal signal_;
    Py test_, fail_;
    vpiHandle callback_;
    std::vector<std::unique_ptr<Agent>> agents_;
};

template <typename Function>
auto guarded(Function function) -> decltype(function()) {
    try {
        return function();
    } catch (Raised) {  // ctypes raises it
        return nullptr;
    }
}

}  // namespace

extern "C" {
void* clock_new(const char* name, Py test, Py fail) {
    return guarded([=] { return new Clock(name, test, fail); });
}
void* source_new(Clock* clock, Py owner, uint64_t seed, const char* port) {
    return guarded([=] { return clock->add<Source>(owner, seed, port); });
}
void* sink_new(Clock* clock, Py owner, uint64_t seed, const char* port) {
    return guarded([=] { return clock->add<Sink>(owner, seed, port); });
}
void* memory_new(Clock* clock, Py owner, uint64_t seed, const char* port, const char* reset,
                 uint8_t* bytes, uint64_t size, const char* habit, uint64_t latency, uint32_t ids,
                 bool shared) {
    return guarded([=] {
        return clock->add<Memory>(owner, seed, port, reset, bytes, size, habit, latency, ids,
                                  shared);
    });
}
uint64_t memory_cycle(Agent* agent) { return static_cast<Memory*>(agent)->cycle; }
uint64_t memory_answers(Agent* agent) { return static_cast<Memory*>(agent)->answers; }
bool memory_quiet(Agent* agent) { return static_cast<Memory*>(agent)->quiet(); }
void source_stop(Agent* agent) {
    agent->stop();
    static_cast<Source*>(agent)->channel_.valid.drive(false);
}
}
