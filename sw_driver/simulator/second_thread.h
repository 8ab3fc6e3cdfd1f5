// Second threads for a simulation. A forked process does not have them; it must neither use nor
// destroy its copies.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

inline void wait_a_moment(unsigned& spins) {
    if (++spins % 1024 == 0) std::this_thread::yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// A second thread for a simulation in steps.
//
// Both threads spin during a step, some tens of microseconds at most. If the second one has no core
// of its own, this costs more than it gains. So both ways are timed: see Faster.
class SecondThread {
public:
    // `share` does the second thread's share of a step.
    explicit SecondThread(std::function<void()> share)
        : share_(std::move(share)), thread_([this] { run(); }) {}

    ~SecondThread() {
        awaken(kOver);
        thread_.join();
    }

    // Steps are allowed between these calls.
    void begin() { awaken(kAwake); }
    void end() { state_.store(kAsleep, std::memory_order_release); }

    // Does `own` while the second thread does its share; returns when both are done.
    template <typename Own> void step(Own&& own) {
        const uint64_t number = step_.load(std::memory_order_relaxed) + 1;
        step_.store(number, std::memory_order_release);
        own();
        for (unsigned spins = 0; done_.load(std::memory_order_acquire) != number;) {
            wait_a_moment(spins);
        }
    }

private:
    enum State { kAsleep, kAwake, kOver };

    void awaken(State state) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            state_.store(state, std::memory_order_release);
        }
        woken_.notify_one();
    }

    void run() {
        uint64_t seen = 0;
        for (;;) {
            {
                std::unique_lock<std::mutex> lock(mutex_);
                woken_.wait(lock, [this] { return state_.load() != kAsleep; });
            }
            for (unsigned spins = 0; state_.load(std::memory_order_acquire) == kAwake;) {
                const uint64_t number = step_.load(std::memory_order_acquire);
                if (number == seen) {
                    wait_a_moment(spins);
                    continue;
                }
                share_();
                done_.store(seen = number, std::memory_order_release);
                spins = 0;
            }
            if (state_.load() == kOver) return;
        }
    }

    std::function<void()> share_;
    std::mutex mutex_;
    std::condition_variable woken_;
    std::atomic<State> state_{kAsleep};
    alignas(64) std::atomic<uint64_t> step_{0};
    alignas(64) std::atomic<uint64_t> done_{0};
    std::thread thread_;
};

// A second thread for parts that take longer than waking it. The free thread does the next part.
// The second one is waited for only if it has begun a part: it may have no core of its own.
class Helper {
public:
    // `part` does the part with a number.
    explicit Helper(std::function<void(unsigned)> part)
        : part_(std::move(part)), thread_([this] { run(); }) {}

    ~Helper() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            over_ = true;
        }
        woken_.notify_one();
        thread_.join();
    }

    // Does `own` and the parts below `parts`; returns when all are done.
    template <typename Own> void share(unsigned parts, Own&& own) {
        undone_.store(parts, std::memory_order_relaxed);
        left_.store(parts);
        if (asleep_.load()) {
            { const std::lock_guard<std::mutex> lock(mutex_); }
            woken_.notify_one();
        }
        own();
        while (take_part()) {
        }
        for (unsigned spins = 0; undone_.load(std::memory_order_acquire) != 0;) {
            wait_a_moment(spins);
        }
    }

private:
    static constexpr std::chrono::microseconds kAwake{100};

    bool take_part() {
        unsigned left = left_.load();
        do {
            if (left == 0) return false;
        } while (!left_.compare_exchange_weak(left, left - 1));
        part_(left - 1);
        undone_.fetch_sub(1, std::memory_order_release);
        return true;
    }

    void run() {
        for (;;) {
            const auto sleep_at = std::chrono::steady_clock::now() + kAwake;
            bool taken = false;
            for (unsigned spins = 0; !taken && std::chrono::steady_clock::now() < sleep_at;) {
                taken = take_part();
                wait_a_moment(spins);
            }
            if (taken) continue;
            std::unique_lock<std::mutex> lock(mutex_);
            asleep_.store(true);
            woken_.wait(lock, [this] { return over_ || left_.load() != 0; });
            asleep_.store(false);
            if (over_) return;
        }
    }

    std::function<void(unsigned)> part_;
    std::mutex mutex_;
    std::condition_variable woken_;
    std::atomic<bool> asleep_{false};
    bool over_ = false;
    std::atomic<unsigned> left_{0}, undone_{0};
    std::thread thread_;
};

// Finds the faster of two ways to do the same work while it is done.
class Faster {
public:
    // Returns the way to use next for `cycles`, which is reduced to try the other way.
    bool choose(uint64_t& cycles) {
        tries_ = rest_ == 0;
        rest_ -= !tries_;
        cycles = std::min(cycles, tries_ ? kTried : kUsed);
        begin_ = std::chrono::steady_clock::now();
        return tries_ != way_;
    }

    // Notes that the chosen way has done that many cycles.
    void took(uint64_t cycles) {
        if (cycles == 0) return;
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
        const double each = passed.count() / cycles;
        if (!tries_) {
            // The speed has changed: try the other way soon.
            if (each > 2 * usual_) rest_ = std::min<uint64_t>(rest_, 1);
            usual_ = each;
        } else if (each < 0.9 * usual_) {
            way_ = !way_;
            usual_ = each;
            rest_ = every_ = kSoon;
        } else {
            rest_ = every_ = std::min(2 * every_, kLate);
        }
    }

private:
    static constexpr uint64_t kUsed = 512, kTried = 32, kSoon = 8, kLate = 1024;

    bool way_ = false, tries_ = false;
    uint64_t rest_ = 2, every_ = kSoon;
    double usual_ = 1e9;
    std::chrono::steady_clock::time_point begin_;
};
