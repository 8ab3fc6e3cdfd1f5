// Sides of streams and AXI4 memories for cocotb benches, without Python at every clock.
//
// streams.py and axi_memory.py say what they do; agents.py loads this into the simulator. An agent
// acts for an object of Python: it reads that object's attributes and fills its lists. Every error
// is an exception of Python, which `fail` raises in the test.

#include <vpi_user.h>

#include <cstdint>
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
extern PyObject *PyExc_AssertionError, *PyExc_AttributeError, *PyExc_OverflowError;
extern PyObject _Py_NoneStruct;
int PyGILState_Ensure();
void PyGILState_Release(int);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
void PyErr_SetString(PyObject*, const char*);
PyObject* PyErr_Occurred();
void PyErr_Fetch(PyObject**, PyObject**, PyObject**);
void PyErr_NormalizeException(PyObject**, PyObject**, PyObject**);
void PyErr_Print();
PyObject* PyUnicode_InternFromString(const char*);
const char* PyUnicode_AsUTF8AndSize(PyObject*, intptr_t*);
PyObject* PyObject_GetAttr(PyObject*, PyObject*);
PyObject* PyObject_CallFunction(PyObject*, const char*, ...);
PyObject* PyObject_CallMethod(PyObject*, const char*, const char*, ...);
int PyObject_IsTrue(PyObject*);
intptr_t PyObject_Size(PyObject*);
PyObject* PySequence_GetItem(PyObject*, intptr_t);
int PySequence_Contains(PyObject*, PyObject*);
int PyList_Append(PyObject*, PyObject*);
PyObject* PyDict_GetItem(PyObject*, PyObject*);
double PyFloat_AsDouble(PyObject*);
PyObject* PyNumber_ToBase(PyObject*, int);
PyObject* PyLong_FromUnsignedLongLong(unsigned long long);
unsigned long long PyLong_AsUnsignedLongLong(PyObject*);
PyObject* PyLong_FromString(const char*, char**, int);
}

namespace {

struct Raised {};  // an exception of Python is set

[[noreturn]] void raise(PyObject* kind, const std::string& text) {
    PyErr_SetString(kind, text.c_str());
    throw Raised();
}

[[noreturn]] void violated(const std::string& text) { raise(PyExc_AssertionError, text); }

template <typename Number>
Number sound(Number result) {  // of a function of Python, where a negative number is an error
    if (result < 0) throw Raised();
    return result;
}

class Object {  // a reference to an object of Python
public:
    explicit Object(PyObject* owned) : object_(owned) {
        if (!owned) throw Raised();
    }
    Object(const Object&) = delete;
    ~Object() { Py_DecRef(object_); }
    operator PyObject*() const { return object_; }

private:
    PyObject* object_;
};

class Name {  // of an attribute or a key
public:
    explicit Name(const char* text) : text_(PyUnicode_InternFromString(text)) {}
    Object of(PyObject* object) const { return Object(PyObject_GetAttr(object, text_)); }
    PyObject* key() const { return text_; }

private:
    PyObject* text_;
};

using Words = std::vector<uint32_t>;  // a value of any width, its lowest word first

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

Words words(PyObject* number, unsigned bits, const std::string& name) {
    const Object digits(PyNumber_ToBase(number, 16));
    intptr_t length;
    const char* text = PyUnicode_AsUTF8AndSize(digits, &length);
    Words value((bits + 31) / 32);
    const bool negative = text[0] == '-';
    for (intptr_t at = 2, place = 4 * (length - 3); !negative && at < length; ++at, place -= 4) {
        const unsigned digit = text[at] <= '9' ? text[at] - '0' : text[at] - 'a' + 10;
        for (unsigned bit = 0; bit < 4; ++bit) {
            if (!(digit >> bit & 1)) continue;
            if (place + bit >= bits) raise(PyExc_OverflowError, std::string(text) + " for " + name);
            value[(place + bit) / 32] |= 1u << (place + bit) % 32;
        }
    }
    if (negative) raise(PyExc_OverflowError, std::string(text) + " for " + name);
    return value;
}

class Signal {
public:
    explicit Signal(const std::string& name)
        : name_(name), handle_(vpi_handle_by_name(const_cast<char*>(name.c_str()), nullptr)) {
        if (!handle_) raise(PyExc_AttributeError, "there is no signal " + name);
        bits_ = vpi_get(vpiSize, handle_);
        shown_.resize((bits_ + 31) / 32);
    }
    const std::string& name() const { return name_; }
    vpiHandle handle() const { return handle_; }
    unsigned bits() const { return bits_; }
    /// What an agent drives; as cocotb's, it drives 0 at first.
    const Words& shown() const { return shown_; }
    bool high() const { return shown_[0]; }

    Words read() const {
        const s_vpi_vecval* vector = now();
        Words value(shown_.size());
        for (size_t index = 0; index < value.size(); ++index) value[index] = vector[index].aval;
        return value;
    }
    uint32_t operator()() const { return now()[0].aval; }

    /// Changes the signal after the edge, as a write by cocotb does.
    void drive(const Words& value) {
        if (value == shown_) return;
        shown_ = value;
        std::vector<s_vpi_vecval> vector;
        for (uint32_t word : value) vector.push_back({word, 0});
        s_vpi_value change{vpiVectorVal, {}};
        change.value.vector = vector.data();
        s_vpi_time delay{vpiSimTime, 0, 0, 0};
        vpi_put_value(handle_, &change, &delay, vpiInertialDelay);
    }
    void drive(uint32_t value) {
        if (value != shown_[0]) drive(Words{value});
    }

private:
    const s_vpi_vecval* now() const {
        s_vpi_value value{vpiVectorVal, {}};
        vpi_get_value(handle_, &value);
        return value.value.vector;
    }

    std::string name_;
    vpiHandle handle_;
    unsigned bits_;
    Words shown_;
};

class Agent {
public:
    Agent(PyObject* owner, uint64_t seed) : owner_(owner), random_(seed) { Py_IncRef(owner); }
    virtual ~Agent() = default;
    virtual void step() = 0;
    void stop() {
        if (owner_) Py_DecRef(owner_);
        owner_ = nullptr;
    }
    bool stopped() const { return !owner_; }

protected:
    bool chance(PyObject* share) {
        const double probability = PyFloat_AsDouble(share);
        if (probability == -1 && PyErr_Occurred()) throw Raised();
        return probability > 0 && std::uniform_real_distribution<>()(random_) < probability;
    }
    /// To a list that is an attribute of the owner.
    void append(const Name& list, PyObject* item) {
        sound(PyList_Append(list.of(owner_), item));
    }
    bool paused() {
        static const Name pause("pause");
        return chance(pause.of(owner_));
    }

    PyObject* owner_;
    std::mt19937_64 random_;
};

class Source : public Agent {
public:
    Source(PyObject* owner, uint64_t seed, const std::string& port)
        : Agent(owner, seed), payload_(port + "payload"), valid_(port + "valid"),
          ready_(port + "ready") {}

    void step() override {
        static const Name queue_name("queue");
        if (offered_ && !ready_()) return;
        const Object queue = queue_name.of(owner_);
        if (offered_) Object(PyObject_CallMethod(queue, "popleft", nullptr));
        offered_ = sound(PyObject_Size(queue)) && !paused();
        if (offered_) {
            const Object first(PySequence_GetItem(queue, 0));
            payload_.drive(words(first, payload_.bits(), payload_.name()));
        }
        valid_.drive(offered_);
    }

private:
    Signal payload_, valid_, ready_;
    bool offered_ = false;
};

class Sink : public Agent {
public:
    Sink(PyObject* owner, uint64_t seed, const std::string& port)
        : Agent(owner, seed), port_(port), payload_(port + "payload"), valid_(port + "valid"),
          ready_(port + "ready") {}

    void step() override {
        static const Name taken("taken"), cycles("cycles");
        ++cycle_;
        const bool valid = valid_();
        if (waiting_ && !(valid && payload_.read() == *waiting_)) {
            const std::string name = port_.substr(port_.rfind('.') + 1);
            violated(name.substr(0, name.size() - 1) + " changed while it waited");
        }
        waiting_.reset();
        if (valid && ready_.high()) {
            append(taken, number(payload_.read()));
            append(cycles, number(cycle_));
        } else if (valid) {
            waiting_ = payload_.read();
        }
        ready_.drive(!paused());
    }

private:
    std::string port_;
    Signal payload_, valid_, ready_;
    std::optional<Words> waiting_;
    uint64_t cycle_ = 0;
};

using Payload = std::vector<Words>;

/// A channel of AXI4 of which the memory is the receiver.
class Input {
public:
    Input(const std::string& port, const char* name, const std::vector<const char*>& parts)
        : key(name), name_(name), valid_(port + name + "valid"), ready_(port + name + "ready") {
        for (const char* part : parts) parts_.emplace_back(port + name + part);
    }
    const std::string& name() const { return name_; }
    unsigned bits(size_t part) const { return parts_[part].bits(); }
    bool waits() const { return waiting_.has_value(); }
    bool moves() const { return ready_.high(); }
    void ready(bool now) { ready_.drive(now); }
    void forget() {
        waiting_.reset();
        ready_.drive(0);
    }

    /// What is there; checks that it stays while it waits.
    std::optional<Payload> look() {
        if (!valid_()) {
            if (waiting_) violated(name_ + " was withdrawn");
            return {};
        }
        Payload payload;
        for (const Signal& part : parts_) payload.push_back(part.read());
        if (waiting_ && *waiting_ != payload) {
            const std::string now = text(payload);
            violated(name_ + " changed while it waited: " + text(*waiting_) + " to " + now);
        }
        waiting_.reset();
        if (!moves()) waiting_ = payload;
        return payload;
    }

    const Name key;

private:
    static std::string text(const Payload& payload) {
        std::string parts;
        for (const Words& part : payload) parts += (parts.empty() ? "(" : ", ") + hex(part);
        return parts + ")";
    }

    std::string name_;
    Signal valid_, ready_;
    std::vector<Signal> parts_;
    std::optional<Payload> waiting_;
};

/// A channel of AXI4 of which the memory is the sender.
class Output {
public:
    Output(const std::string& port, const char* name, const std::vector<const char*>& parts)
        : key(name), valid_(port + name + "valid"), ready_(port + name + "ready") {
        for (const char* part : parts) parts_.emplace_back(port + name + part);
    }
    bool valid() const { return valid_.high(); }
    bool moves() const { return valid_.high() && ready_(); }
    void send(const Payload& payload) {
        for (size_t part = 0; part < parts_.size(); ++part) parts_[part].drive(payload[part]);
        valid_.drive(1);
    }
    void rest() { valid_.drive(0); }

    const Name key;

private:
    Signal valid_, ready_;
    std::vector<Signal> parts_;
};

struct Burst {
    uint32_t ident;
    uint64_t address, beats, cycle, done;
};

struct Answer {
    uint32_t ident;
    uint64_t cycle;
    uint32_t response;
};

class Memory : public Agent {
public:
    Memory(PyObject* owner, uint64_t seed, const std::string& port, const std::string& reset,
           uint8_t* bytes, uint64_t size, const std::string& habit, uint64_t latency,
           uint32_t ids, bool shared)
        : Agent(owner, seed), bytes_(bytes), size_(size), habit_(habit), latency_(latency),
          ids_(ids), shared_(shared), ar_(port, "ar", {"id", "addr", "len", "size", "burst"}),
          aw_(port, "aw", {"id", "addr", "len", "size", "burst"}),
          w_(port, "w", {"data", "strb", "last"}), r_(port, "r", {"id", "data", "resp", "last"}),
          b_(port, "b", {"id", "resp"}), beat_bytes_(w_.bits(0) / 8) {
        if (!reset.empty()) reset_.emplace(reset);
    }

    uint64_t cycle() const { return cycle_; }
    uint64_t answers() const { return answers_; }
    bool quiet() const {
        return to_read_.empty() && to_write_.empty() && data_.empty() && to_answer_.empty();
    }

    void step() override {
        static const Name reads("reads"), writes("writes");
        ++cycle_;
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

private:
    void forget() {
        for (Input* channel : {&ar_, &aw_, &w_}) channel->forget();
        for (Output* channel : {&r_, &b_}) channel->rest();
        to_read_.clear();
        to_write_.clear();
        data_.clear();
        to_answer_.clear();
    }

    bool pause(const Name& channel) {
        static const Name stalls("stalls");
        const Object shares = stalls.of(owner_);
        if (!sound(PyObject_Size(shares))) return false;
        PyObject* share = PyDict_GetItem(shares, channel.key());
        return share && chance(share);
    }

    /// The response to `beats` beats of a burst from `first` on.
    uint32_t response(const Name& question, uint64_t index, const Burst& burst, uint64_t first,
                      uint64_t beats) {
        static const Name failing("failing"), error("error");
        const Object fails = question.of(owner_), lines = failing.of(owner_);
        bool failed = fails != &_Py_NoneStruct
                      && sound(PyObject_IsTrue(Object(PyObject_CallFunction(fails, "K", index))));
        for (uint64_t beat = first; beat < first + beats && !failed; ++beat) {
            failed = sound(PySequence_Contains(lines, number(burst.address + beat * beat_bytes_)));
        }
        return failed ? PyLong_AsUnsignedLongLong(error.of(owner_)) : 0;
    }

    bool take_address(Input& channel, std::list<Burst>& queue, const Name& log) {
        const std::optional<Payload> payload = channel.look();
        if (!payload) return false;
        const Words& place = (*payload)[1];
        const uint32_t ident = (*payload)[0][0], size = (*payload)[3][0], type = (*payload)[4][0];
        const uint64_t address = place[0] | (place.size() > 1 ? uint64_t{place[1]} << 32 : 0);
        const uint64_t beats = (*payload)[2][0] + 1, end = address + beats * beat_bytes_;
        std::string wrong;
        if (ident >= ids_) {
            wrong = "has ID " + std::to_string(ident);
        } else if (type != 1) {
            wrong = "is of type " + std::to_string(type);
        } else if (1u << size != beat_bytes_) {
            wrong = "has size " + std::to_string(size);
        } else if (address % beat_bytes_) {
            wrong = "is not aligned";
        } else if (address / 4096 != (end - 1) / 4096) {
            wrong = "crosses 4 KB";
        } else if (end > size_) {
            wrong = "leaves the memory of " + std::to_string(size_) + " bytes";
        }
        if (!wrong.empty()) {
            const std::string burst = " burst of " + std::to_string(beats) + " beats at ";
            violated(channel.name() + burst + hex(place) + " " + wrong);
        }
        if (!channel.moves()) return false;
        queue.push_back({ident, address, beats, cycle_, 0});
        append(log, Object(PyObject_CallMethod(owner_, "_burst", "KKKI", address, beats, cycle_,
                                               ident)));
        return true;
    }

    /// All data of a burst are here, and its address is not.
    bool whole_burst_ahead() const { return !data_.empty() && data_.back()[2][0]; }

    void take_data() {
        static const Name cycles("write_cycles");
        std::optional<Payload> beat = w_.look();
        if (!beat) return;
        const bool offered = aw_.waits() && !whole_burst_ahead();
        if (to_write_.empty() && !offered) violated("write data before its address");
        if (!w_.moves()) return;
        append(cycles, number(cycle_));
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
                if (!(beat[1][lane / 32] >> lane % 32 & 1)) continue;
                place[lane] = beat[0][lane / 4] >> lane % 4 * 8;
            }
            const bool last = beat[2][0];
            if (last != (burst.done == burst.beats)) {
                const std::string at = " at beat " + std::to_string(burst.done);
                violated("WLAST is " + std::to_string(last) + at);
            }
            if (!last) continue;
            const Burst done = burst;
            to_write_.pop_front();
            const uint64_t index = writes_ - to_write_.size() - 1;
            const uint32_t failed = response(fails, index, done, 0, done.beats);
            to_answer_.push_back({done.ident, cycle_, failed});
        }
    }

    void read() {
        static const Name cycles("read_cycles"), fails("read_error");
        if (r_.moves()) {
            append(cycles, number(cycle_));
            ++beats_read_;
            if (++reading_->done == reading_->beats) to_read_.erase(reading_);
        } else if (r_.valid()) {
            return;
        }
        if (to_read_.empty() || cycle_ - to_read_.front().cycle < latency_ || pause(r_.key)) {
            return r_.rest();
        }
        reading_ = choose(to_read_);
        const Burst& burst = *reading_;
        Words data(beat_bytes_ / 4);
        std::memcpy(data.data(), bytes_ + burst.address + burst.done * beat_bytes_, beat_bytes_);
        const uint32_t failed = response(fails, beats_read_, burst, burst.done, 1);
        r_.send({{burst.ident}, data, {failed}, {burst.done == burst.beats - 1}});
    }

    void answer() {
        if (b_.moves()) {
            ++answers_;
        } else if (b_.valid()) {
            return;
        }
        if (to_answer_.empty() || cycle_ - to_answer_.front().cycle < latency_ || pause(b_.key)) {
            return b_.rest();
        }
        const auto chosen = choose(to_answer_);
        b_.send({{chosen->ident}, {chosen->response}});
        to_answer_.erase(chosen);
    }

    /// Whose turn it is: of the oldest of each ID one at random.
    template <typename Queue>
    typename Queue::iterator choose(Queue& queue) {
        if (ids_ == 1) return queue.begin();
        std::vector<typename Queue::iterator> oldest;
        std::set<uint32_t> seen;
        for (auto entry = queue.begin(); entry != queue.end(); ++entry) {
            if (seen.insert(entry->ident).second) oldest.push_back(entry);
        }
        return oldest[random_() % oldest.size()];
    }

    /// Says what will be taken in the next cycle; what is offered now, is then, too.
    void say_ready() {
        bool read = true, write = true, beat = !to_write_.empty();
        if (habit_ == "on_valid") {
            read = ar_.waits();
            write = aw_.waits();
            beat = beat && w_.waits();
        } else if (habit_ == "data_first") {
            write = whole_burst_ahead();
            beat = !write;
        } else if (habit_ == "together") {
            write = !beat && aw_.waits() && w_.waits();
        }
        write = write && !pause(aw_.key);
        beat = (beat && !pause(w_.key)) || (write && habit_ == "together");
        ar_.ready(read && !pause(ar_.key));
        aw_.ready(write);
        w_.ready(beat && !(shared_ && r_.valid()));
    }

    uint8_t* bytes_;
    uint64_t size_;
    std::string habit_;
    uint64_t latency_;
    uint32_t ids_;
    bool shared_;
    Input ar_, aw_, w_;
    Output r_, b_;
    unsigned beat_bytes_;
    std::optional<Signal> reset_;
    uint64_t cycle_ = 0, answers_ = 0, writes_ = 0, beats_read_ = 0;
    std::list<Burst> to_read_, to_write_;
    std::list<Burst>::iterator reading_;
    std::deque<Payload> data_;
    std::list<Answer> to_answer_;
};

/// Has agents act at each rising edge, on what is there before it, as long as `test` is not done.
class Clock {
public:
    Clock(const std::string& name, PyObject* test, PyObject* fail)
        : signal_(name), test_(test), fail_(fail) {
        Py_IncRef(test);
        Py_IncRef(fail);
        static s_vpi_time time{vpiSimTime, 0, 0, 0};
        s_cb_data data{};
        s_vpi_value value{vpiIntVal, {}};
        data.reason = cbValueChange;
        data.cb_rtn = changed;
        data.obj = signal_.handle();
        data.time = &time;
        data.value = &value;
        data.user_data = reinterpret_cast<PLI_BYTE8*>(this);
        callback_ = vpi_register_cb(&data);
    }
    template <typename Side, typename... Arguments>
    Agent* add(Arguments&&... arguments) {
        agents_.push_back(std::make_unique<Side>(std::forward<Arguments>(arguments)...));
        return agents_.back().get();
    }

private:
    static PLI_INT32 changed(p_cb_data data) {
        auto& clock = *reinterpret_cast<Clock*>(data->user_data);
        if (!clock.signal_()) return 0;
        const int held = PyGILState_Ensure();
        try {
            if (sound(PyObject_IsTrue(Object(PyObject_CallMethod(clock.test_, "done", nullptr))))) {
                clock.end();
            } else {
                for (auto& agent : clock.agents_) {
                    if (!agent->stopped()) agent->step();
                }
            }
        } catch (Raised) {
            PyObject *type, *error, *trace;
            PyErr_Fetch(&type, &error, &trace);
            PyErr_NormalizeException(&type, &error, &trace);
            PyObject* told = PyObject_CallFunction(clock.fail_, "O", error);
            if (!told) PyErr_Print();
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
    PyObject *test_, *fail_;
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
void* clock_new(const char* name, PyObject* test, PyObject* fail) {
    return guarded([=] { return new Clock(name, test, fail); });
}
void* source_new(Clock* clock, PyObject* owner, uint64_t seed, const char* port) {
    return guarded([=] { return clock->add<Source>(owner, seed, port); });
}
void* sink_new(Clock* clock, PyObject* owner, uint64_t seed, const char* port) {
    return guarded([=] { return clock->add<Sink>(owner, seed, port); });
}
void* memory_new(Clock* clock, PyObject* owner, uint64_t seed, const char* port, const char* reset,
                 uint8_t* bytes, uint64_t size, const char* habit, uint64_t latency, uint32_t ids,
                 bool shared) {
    return guarded([=] {
        return clock->add<Memory>(owner, seed, port, reset, bytes, size, habit, latency, ids,
                                  shared);
    });
}
uint64_t memory_cycle(Agent* agent) { return static_cast<Memory*>(agent)->cycle(); }
uint64_t memory_answers(Agent* agent) { return static_cast<Memory*>(agent)->answers(); }
bool memory_quiet(Agent* agent) { return static_cast<Memory*>(agent)->quiet(); }
void agent_stop(Agent* agent) { agent->stop(); }
}
