// Allocator in front of PyTorch's: counts the bytes of tensors against a budget.
//
// Blocks from `MAPPED_BYTES` on are mappings of their own. Freed ones stay within the budget, and
// give their pages to later blocks: to fault in a new page takes the system longer than a copy.

#pragma once

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>

namespace {

// Bytes of one residency; guard.py has the same fields.
struct Account {
  std::atomic<int64_t> used, peak, most_live, high;  // "high" is set by Python before an operator
  int64_t away, limit, least;
  // Makes room: 1, refuses: 2; 0 if a signal has interrupted it, maybe before its first statement.
  int (*ask)(int64_t nbytes, char* reason, int64_t size);
};

// Record of a block of memory: in `blocks`, or in front of memory of PyTorch's allocator.
struct alignas(64) Block {
  std::atomic<Account*> account;
  size_t nbytes;
  size_t mapped;  // bytes of its own mapping, or 0
  Block(Account* account, size_t nbytes, size_t mapped)
      : account(account), nbytes(nbytes), mapped(mapped) {}
};
static_assert(sizeof(Block) == 64);

const size_t PAGE = sysconf(_SC_PAGESIZE);
const size_t GRAIN = std::max<size_t>(PAGE, 1 << 14);  // mappings are a multiple of it
constexpr size_t MAPPED_BYTES = 1 << 16;  // smaller blocks have no mapping of their own,
constexpr size_t UNKEPT_BYTES = 1 << 20;  // nor have these where freed mappings do not stay
constexpr size_t MOST_SEAMS = 10000;      // Linux allows a process 65,530 mappings

c10::Allocator* base = nullptr;
thread_local Account* counting = nullptr;
std::mutex map_lock;
// Memory may be freed after this library's variables, so these stay.
auto& blocks = *new std::unordered_map<void*, Block>;  // those with mappings, by their memory
auto& free_maps = *new std::multimap<size_t, char*>;   // kept ones, by bytes
auto& seams = *new std::set<char*>;  // where moved pages begin, in blocks and kept mappings
std::atomic<int64_t> free_bytes{0};
std::atomic<bool> keeps{false};  // freed mappings stay, up to the limit of their account

Block* block_of(void* memory) {
  if (reinterpret_cast<uintptr_t>(memory) % PAGE == 0) {
    std::lock_guard<std::mutex> guard(map_lock);
    if (auto at = blocks.find(memory); at != blocks.end()) return &at->second;
  }
  return static_cast<Block*>(memory) - 1;
}

void keep(char* memory, size_t nbytes) {
  free_maps.emplace(nbytes, memory);
  free_bytes += static_cast<int64_t>(nbytes);
}

// Take a kept mapping out of the table.
std::pair<char*, size_t> drop(std::multimap<size_t, char*>::iterator at) {
  const std::pair<char*, size_t> dropped{at->second, at->first};
  free_bytes -= static_cast<int64_t>(at->first);
  free_maps.erase(at);
  return dropped;
}

// Take the start of a kept mapping, `nbytes` or all; the rest stays.
std::pair<char*, size_t> cut(std::multimap<size_t, char*>::iterator at, size_t nbytes) {
  auto [memory, size] = drop(at);
  if (size <= nbytes) return {memory, size};
  keep(memory + nbytes, size - nbytes);
  return {memory, nbytes};
}

char* map_new(size_t nbytes, char* at = nullptr) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
  void* memory = mmap(at, nbytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  TORCH_CHECK_WITH(OutOfMemoryError, memory != MAP_FAILED, "the system has no ", nbytes, " bytes");
  return static_cast<char*>(memory);
}

void unmap(char* memory, size_t nbytes) {
  munmap(memory, nbytes);
  seams.erase(seams.lower_bound(memory), seams.lower_bound(memory + nbytes));
}

// Return kept mappings to the system until `most` bytes are left: the largest first, from its end.
void trim(int64_t most) {
  most = std::max<int64_t>(most, 0);
  if (free_bytes <= most) return;
  std::lock_guard<std::mutex> guard(map_lock);
  while (free_bytes > most && !free_maps.empty()) {
    auto [memory, nbytes] = drop(std::prev(free_maps.end()));
    const size_t room = std::max<int64_t>(most - free_bytes, 0) / GRAIN * GRAIN;
    const size_t left = std::min(room, nbytes);
    unmap(memory + left, nbytes - left);
    if (left) keep(memory, left);
  }
}

// Bytes that a plan has just taken over are no peak: it makes room for them first.
void add(Account* account, int64_t nbytes, bool is_new = true) {
  const int64_t used = account->used += nbytes;
  if (is_new && used > account->peak) account->peak = used;
  if (is_new && used > account->high) account->high = used;
  if (used + account->away > account->most_live) account->most_live = used + account->away;
}

void reserve(Account* account, int64_t nbytes, bool asks) {
  if (asks && account->ask && account->used + nbytes > account->limit) {
    char reason[512] = "";
    int code = account->ask(nbytes, reason, sizeof reason);
    if (code == 0) {  // there must be room for all that; Python sees the signal afterwards
      code = account->ask(nbytes, reason, sizeof reason);
      std::raise(SIGINT);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, code != 2, reason);
  }
  add(account, nbytes);
}

// Replace new pages at `to` by those at `from`. The system moves pages of one of its mappings at a
// time; to move few of them costs more than to clear new ones, so these are dropped.
void move(char* from, size_t nbytes, char* to) {
  for (char* end = from + nbytes; from < end;) {
    const auto seam = seams.upper_bound(from);
    const size_t part = (seam == seams.end() ? end : std::min(*seam, end)) - from;
    seams.erase(from);
    if (part >= MAPPED_BYTES &&
        mremap(from, part, part, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED) {
      seams.insert(to);
      seams.insert(to + part);
    } else {
      munmap(from, part);
      map_new(part, to);
    }
    from += part;
    to += part;
  }
}

// Return a mapping: a kept one, else one with pages of kept ones, which the system need not clear.
char* map(size_t nbytes) {
  if (auto at = free_maps.lower_bound(nbytes); at != free_maps.end()) return cut(at, nbytes).first;
  char* memory = map_new(nbytes);
  for (size_t filled = 0; filled < nbytes && !free_maps.empty() && seams.size() < MOST_SEAMS;) {
    auto at = free_maps.lower_bound(nbytes - filled);
    if (at == free_maps.end()) --at;
    auto [from, part] = cut(at, nbytes - filled);
    move(from, part, memory + filled);
    filled += part;
  }
  seams.erase(memory + nbytes);
  return memory;
}

void* take(size_t nbytes, Account* account) {
  if (!account || nbytes < (keeps ? MAPPED_BYTES : UNKEPT_BYTES))
    return new (base->raw_allocate(nbytes + sizeof(Block))) Block(account, nbytes, 0) + 1;
  const size_t mapped = (nbytes + GRAIN - 1) / GRAIN * GRAIN;
  std::lock_guard<std::mutex> guard(map_lock);
  void* memory = map(mapped);
  blocks.try_emplace(memory, account, nbytes, mapped);
  return memory;
}

// Free a block; its mapping is kept if the account's limit allows that.
void release(void* memory) {
  if (memory == nullptr) return;
  Block* block = block_of(memory);
  Account* account = block->account;
  if (account) account->used -= static_cast<int64_t>(block->nbytes);
  const size_t mapped = block->mapped;
  if (!mapped) return base->raw_deallocate(block);
  const bool stays = keeps && account;
  {
    std::lock_guard<std::mutex> guard(map_lock);
    blocks.erase(memory);
    if (stays)
      keep(static_cast<char*>(memory), mapped);
    else
      unmap(static_cast<char*>(memory), mapped);
  }
  if (stays) trim(account->limit - account->used);
}

struct Counter final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override { return counted(nbytes, counting, true); }

  c10::DataPtr counted(size_t nbytes, Account* account, bool asks) {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (nbytes == 0) return {nullptr, nullptr, &release, cpu};
    if (account && static_cast<int64_t>(nbytes) < account->least) account = nullptr;
    if (account) reserve(account, static_cast<int64_t>(nbytes), asks);
    void* memory = nullptr;
    try {
      memory = take(nbytes, account);
    } catch (...) {
      if (account) account->used -= static_cast<int64_t>(nbytes);
      throw;
    }
    if (account) trim(account->limit - account->used);
    return {memory, memory, &release, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t nbytes) const override {
    default_copy_data(to, from, nbytes);
  }
};

Counter* counter = nullptr;

bool is_own(const c10::StorageImpl* storage) {
  return storage->data_ptr().get_deleter() == &release && storage->data_ptr().get();
}

}  // namespace
