// Writes memory commands, one on a line: tCK, memory, command, group, bank, row, column.

#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <tuple>

class CommandTrace {
public:
    CommandTrace() = default;
    CommandTrace(const CommandTrace&) = delete;
    CommandTrace& operator=(const CommandTrace&) = delete;
    ~CommandTrace() { close(); }

    // `mode`: "w", or "a" for a file that already has its header.
    bool open(const char* path, const char* mode) {
        close();
        file_ = fopen(path, mode);
        return on();
    }

    bool on() const { return file_ != nullptr; }

    // Returns true if everything was written.
    bool close() {
        if (!file_) return true;
        const bool good = !ferror(file_);
        const bool closed = fclose(file_) == 0;
        file_ = nullptr;
        return good && closed;
    }

    // Called before a fork: the child must not write buffered data again.
    void flush() {
        if (file_) fflush(file_);
    }

    void activate(uint64_t tck, unsigned memory, const char* name, unsigned group, unsigned bank,
                  unsigned row) {
        rows_[{memory, group, bank}] = row;
        begin(tck, memory, name);
        fprintf(file_, "%u,%u,%u,\n", group, bank, row);
    }

    void column(uint64_t tck, unsigned memory, const char* name, unsigned group, unsigned bank,
                unsigned column) {
        begin(tck, memory, name);
        fprintf(file_, "%u,%u,%u,%u\n", group, bank, rows_[{memory, group, bank}], column);
    }

    void precharge(uint64_t tck, unsigned memory, const char* name, unsigned group,
                   unsigned bank) {
        begin(tck, memory, name);
        fprintf(file_, "%u,%u,,\n", group, bank);
    }

    // Command to all banks.
    void all(uint64_t tck, unsigned memory, const char* name) {
        begin(tck, memory, name);
        fputs(",,,\n", file_);
    }

private:
    void begin(uint64_t tck, unsigned memory, const char* name) {
        fprintf(file_, "%llu,%u,%s,", static_cast<unsigned long long>(tck), memory, name);
    }

    FILE* file_ = nullptr;
    std::map<std::tuple<unsigned, unsigned, unsigned>, unsigned> rows_;
};
