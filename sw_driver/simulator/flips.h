// Flips of bits in the registers and memories of a Verilated model, for `nearmem faults`.
//
// Verilator's settings must make them public; see public.py.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <verilated.h>
#include <verilated_syms.h>

class Flips {
public:
    // What has become of the planned flip. A wire has its old value as soon as it is evaluated.
    enum State { kPlanned, kUndone, kOverwritten, kStanding };

    // Registers and memories in a fixed order, a line each: name, bits of a word, words if memory.
    const char* places(VerilatedContext& context) {
        text_.clear(), places_.clear();
        for (const auto& scope : *context.scopeNameMap()) {
            if (!scope.second->varsp()) continue;
            for (const auto& entry : *scope.second->varsp()) {
                const VerilatedVar& var = entry.second;
                if (!var.isPublicRW() || var.isParam() || var.udims() > 1) continue;
                const unsigned words = var.udims() ? var.range(0)->elements() : 0;
                places_.push_back({static_cast<uint8_t*>(var.datap()), var.entSize()});
                text_ += std::string(scope.first) + "." + entry.first + " " +
                         std::to_string(var.entBits()) + " " + std::to_string(words) + "\n";
            }
        }
        return text_.c_str();
    }

    void plan(uint64_t time, unsigned place, uint64_t word, unsigned bit) {
        word_ = places_[place].data + word * places_[place].word_bytes;
        bytes_ = places_[place].word_bytes;
        bit_ = bit;
        time_ = time;
        state_ = kPlanned;
    }

    template <typename Model> void tick(uint64_t now, Model& model) {
        if (state_ == kStanding && !stands()) state_ = kOverwritten;
        if (now != time_) return;
        word_[bit_ / 8] ^= 1 << bit_ % 8;
        flipped_.assign(word_, word_ + bytes_);
        model.eval();
        state_ = stands() ? kStanding : kUndone;
    }

    State state() const { return state_; }

private:
    struct Place {
        uint8_t* data;
        size_t word_bytes;
    };

    bool stands() const { return std::equal(flipped_.begin(), flipped_.end(), word_); }

    std::string text_;
    std::vector<Place> places_;
    std::vector<uint8_t> flipped_;
    uint8_t* word_ = nullptr;
    size_t bytes_ = 0;
    unsigned bit_ = 0;
    uint64_t time_ = UINT64_MAX;
    State state_ = kPlanned;
};
