// Guard of a memory plan: decides which operators Python must see.
//
// PyTorch calls a dispatch mode through a table of functions (`PyInterpreterVTable`). The guard puts
// its own table before that one, so it sees exactly the operators that the mode would see, and
// needs no dispatch key of its own. An operator that follows the script of a known step, touches no
// tensor that is away and lies at no place where the plan acts runs without Python. Any other goes
// on to the mode. `guard_memory.h` counts PyTorch's memory.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/flat_hash_map.h>
#include <torch/library.h>

#include "guard_memory.h"

#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

using c10::OperatorHandle;
using c10::StorageImpl;
using torch::jit::Stack;
using namespace c10::impl;

namespace {

enum : uint8_t { AWAY = 1, KEPT = 2, HELD = 4 };

// A storage of the residency; its weak reference keeps the address from being used again.
struct Entry {
  c10::weak_intrusive_ptr<StorageImpl> storage;
  int64_t nbytes;
  int32_t slot;    // number in the step
  uint32_t step;   // step in which the slot is valid
  uint8_t flags;
};

// An operator of a script, with the numbers of the operations that Python counts in it.
struct Operator {
  const c10::FunctionSchema* schema;
  int32_t begin, count;
  uint32_t used, made, end;  // places in Script::slots
  bool wakes;
};

struct Script {
  std::vector<Operator> operators;
  std::vector<int32_t> slots;
  std::vector<int64_t> nbytes;  // by slot
};

struct Properties {
  bool looks, python;
  std::vector<bool> writes;
};

// guard.py has the same fields.
struct State {
  int64_t number;      // operations of the step so far
  int64_t wakes_at;    // operation from which Python sees each operator
  int64_t skipped;     // operators that Python did not see, in all
  int32_t scripted, recording, inside, orphans;
  int32_t diverged;  // 1 before an operator, 2 by its results, 3 as it failed
} state;

thread_local PyObject* own = nullptr;  // mode of the thread that the guard works for
Account* owner = nullptr;
std::mutex lock;
ska::flat_hash_map<StorageImpl*, Entry> table;
std::unordered_map<const c10::FunctionSchema*, Properties> known;
std::unordered_map<std::string, std::vector<std::string>> hidden;  // writes that a schema omits
std::unordered_map<int64_t, Script> scripts;
std::vector<StorageImpl*> places;  // storages of the step by slot
Script recorded, *script = nullptr;
size_t position = 0;
uint32_t step_id = 1;
std::vector<StorageImpl*> arguments, numbered, results, in_use;
const PyInterpreterVTable* python = nullptr;
PyInterpreter* interpreter = nullptr;

const Properties& properties_of(const OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  auto found = known.find(&schema);
  if (found != known.end()) return found->second;
  Properties& made = known[&schema];
  const std::string& name = schema.name();
  const auto ends = [&](const char* part) { return name.find(part) != std::string::npos; };
  made.looks = name == "aten::detach" || (name == "aten::view" && schema.overload_name().empty());
  made.python = ends("c10d::") || ends("resize") || ends("::set_") || ends("nearmem");
  auto writes = hidden.find(name);
  for (const auto& argument : schema.arguments()) {
    bool written = argument.alias_info() && argument.alias_info()->isWrite();
    made.python |= written && argument.kwarg_only();  // "out" may be resized
    if (writes != hidden.end())
      for (const auto& other : writes->second) written |= argument.name() == other;
    made.writes.push_back(written);
  }
  return made;
}

// Call a function with each storage, until it returns false; false for tensors of other kinds.
template <typename F>
bool each_storage(const c10::IValue& value, const F& call) {
  if (value.isTensor()) {
    const auto* tensor = value.unsafeToTensorImpl();
    if (tensor->key_set().empty()) return true;  // undefined
    if (tensor->key_set().has(c10::DispatchKey::Python) || tensor->layout() != c10::kStrided)
      return false;
    if (!tensor->has_storage()) return true;
    return call(tensor->unsafe_storage().unsafeGetStorageImpl());
  }
  if (value.isList()) {
    for (const c10::IValue& item : value.toListRef())
      if (!each_storage(item, call)) return false;
  }
  return !value.isStorage();
}

bool gather(const Stack& stack, size_t from, std::vector<StorageImpl*>& storages) {
  storages.clear();
  const auto add_one = [&](StorageImpl* storage) {
    storages.push_back(storage);
    return true;
  };
  for (size_t at = from; at < stack.size(); ++at)
    if (!each_storage(stack[at], add_one)) return false;
  return true;
}

// Remove the arguments and repetitions from the results.
void keep_new() {
  size_t count = 0;
  for (StorageImpl* storage : results) {
    bool is_new = true;
    for (StorageImpl* other : arguments) is_new &= other != storage;
    for (size_t at = 0; at < count; ++at) is_new &= results[at] != storage;
    if (is_new) results[count++] = storage;
  }
  results.resize(count);
}

void put(StorageImpl* storage, Entry& entry, int32_t slot) {
  entry.slot = slot;
  entry.step = step_id;
  if (places.size() <= static_cast<size_t>(slot)) places.resize(slot + 64, nullptr);
  places[slot] = storage;
}

// Whether another storage of this step has a slot.
bool is_taken(int32_t slot) {
  if (static_cast<size_t>(slot) >= places.size() || !places[slot]) return false;
  auto found = table.find(places[slot]);
  return found != table.end() && found->second.step == step_id && found->second.slot == slot;
}

Entry& track(StorageImpl* storage, int64_t nbytes, uint8_t flags) {
  auto found = table.find(storage);
  if (found == table.end()) {
    c10::intrusive_ptr<StorageImpl> strong =
        c10::intrusive_ptr<StorageImpl>::reclaim_copy(storage);
    Entry entry{c10::weak_intrusive_ptr<StorageImpl>(strong), 0, -1, 0, 0};
    found = table.emplace(storage, std::move(entry)).first;
  }
  found->second.nbytes = nbytes;
  found->second.flags = flags;
  return found->second;
}

bool counts(const StorageImpl* storage) {
  return static_cast<int64_t>(storage->nbytes()) >= owner->least && storage->data() &&
      storage->device_type() == c10::DeviceType::CPU && storage->resizable();
}

// Without the mode, as Python calls an operator.
void run(const OperatorHandle& op, Stack* stack) {
  ExcludeDispatchKeyGuard guard(c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  op.callBoxed(stack);
}

void record(const OperatorHandle& op, Stack* stack) {
  const int64_t number = state.number;
  const size_t count = op.schema().arguments().size();
  std::vector<StorageImpl*> given;
  const bool plain = gather(*stack, stack->size() - count, given);
  python->dispatch(op, stack);
  if (!state.recording || state.number == number) return;
  if (!plain || !gather(*stack, stack->size() - op.schema().returns().size(), results)) {
    state.recording = 0;
    return;
  }
  arguments = std::move(given);
  keep_new();
  std::lock_guard<std::mutex> guard(lock);
  Operator made{&op.schema(), static_cast<int32_t>(number),
                static_cast<int32_t>(state.number - number), 0, 0, 0, false};
  made.used = recorded.slots.size();
  for (StorageImpl* storage : arguments) {
    auto found = table.find(storage);
    if (found != table.end()) recorded.slots.push_back(found->second.slot);
  }
  made.made = recorded.slots.size();
  for (StorageImpl* storage : results) {
    auto found = table.find(storage);
    if (found != table.end()) recorded.slots.push_back(found->second.slot);
  }
  made.end = recorded.slots.size();
  recorded.operators.push_back(made);
}

enum Choice { SKIP, PASS, PYTHON, DIVERGE };

// Compare an operator with the script, and see whether Python has to do with it.
Choice choose(const OperatorHandle& op, const Stack& stack, const Properties& properties) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size(), from = stack.size() - count;
  arguments.clear();
  numbered.clear();
  bool python_sees = properties.python, is_plain = true;
  std::lock_guard<std::mutex> guard(lock);
  const Operator* next =
      position < script->operators.size() ? &script->operators[position] : nullptr;
  bool same = next && next->schema == &schema && next->begin == state.number;
  uint32_t at = next ? next->used : 0;
  bool tracked = false;
  for (size_t n = 0; n < count && is_plain; ++n) {
    is_plain = each_storage(stack[from + n], [&](StorageImpl* storage) {
      arguments.push_back(storage);
      auto found = table.find(storage);
      if (found == table.end()) return true;
      tracked = true;
      const Entry& entry = found->second;
      python_sees |= (entry.flags & AWAY) || ((entry.flags & KEPT) && properties.writes[n]);
      if (same && at < next->made) {
        const int32_t slot = script->slots[at++];
        same = entry.step == step_id
            ? entry.slot == slot
            : entry.nbytes == script->nbytes[slot] && !is_taken(slot);
        for (size_t n = 0; n < numbered.size(); ++n)  // of this operator, not put yet
          same = same && (numbered[n] == storage) == (script->slots[next->used + n] == slot);
        numbered.push_back(storage);
      } else {
        same = false;
      }
      return true;
    });
  }
  if (!is_plain) return DIVERGE;
  if (!tracked && !state.inside) return PASS;
  if (!same || at != next->made) return DIVERGE;
  // Python calls an operator on lists for one tensor at a time if it makes new ones.
  python_sees |= next->wakes || state.number >= state.wakes_at ||
      (next->count > 1 && next->end > next->made);
  at = next->used;
  for (StorageImpl* storage : arguments) {
    auto found = table.find(storage);
    if (found != table.end()) put(storage, found->second, script->slots[at++]);
  }
  return python_sees ? PYTHON : SKIP;
}

void skip(const OperatorHandle& op, Stack* stack) {
  in_use = arguments;
  struct Counting {
    Account* before = counting;
    Counting() { counting = owner; }
    ~Counting() {
      counting = before;
      in_use.clear();
    }
  } scope;
  try {
    run(op, stack);
  } catch (...) {
    state.diverged = 3;
    state.scripted = 0;
    throw;
  }
  const Operator& now = script->operators[position];
  state.number = now.begin + now.count;
  ++state.skipped;
  ++position;
  bool same = gather(*stack, stack->size() - op.schema().returns().size(), results);
  arguments = in_use;
  keep_new();
  std::lock_guard<std::mutex> guard(lock);
  uint32_t at = now.made;
  for (StorageImpl* storage : results) {
    if (!counts(storage) || table.count(storage)) continue;
    Entry& entry = track(storage, static_cast<int64_t>(storage->nbytes()), 0);
    ++state.orphans;
    same = same && at < now.end && entry.nbytes == script->nbytes[script->slots[at]];
    if (same) put(storage, entry, script->slots[at++]);
  }
  if (same && at == now.end) return;
  for (StorageImpl* storage : results)
    if (auto found = table.find(storage); found != table.end()) found->second.step = 0;
  state.diverged = 2;
  state.scripted = 0;
}

void replay(const OperatorHandle& op, Stack* stack, const Properties& properties) {
  switch (choose(op, *stack, properties)) {
    case PASS:
      return run(op, stack);
    case SKIP:
      return skip(op, stack);
    case DIVERGE:
      state.diverged = 1;
      state.scripted = 0;
      return python->dispatch(op, stack);
    case PYTHON:
      break;
  }
  const int64_t end = script->operators[position].begin + script->operators[position].count;
  python->dispatch(op, stack);
  if (!state.scripted) return;
  if (state.number != end) state.diverged = 1, state.scripted = 0;
  ++position;
}

bool is_own_mode() {
  return own && TorchDispatchModeTLS::stack_len() == 1 &&
      TorchDispatchModeTLS::get_stack_at(0)->ptr(interpreter) == own;
}

#define FORWARD(result, name, parameters, values) \
  result name parameters const override { return python->name values; }

struct Table final : PyInterpreterVTable {
  void dispatch(const OperatorHandle& op, Stack* stack) const override {
    if (!is_own_mode()) return python->dispatch(op, stack);
    const Properties& properties = properties_of(op);
    if (properties.looks && gather(*stack, stack->size() - op.schema().arguments().size(), results))
      return run(op, stack);
    if (state.scripted) return replay(op, stack, properties);
    if (state.recording) return record(op, stack);
    python->dispatch(op, stack);
  }

  // Nothing makes PyTorch copy the tensor without its mode, which only looks at it.
  c10::intrusive_ptr<c10::TensorImpl> detach(const c10::TensorImpl* a) const override {
    if (is_own_mode() && !a->key_set().has(c10::DispatchKey::Python)) return {};
    return python->detach(a);
  }

  using T = const c10::TensorImpl*;
  using D = c10::DeviceType;
  using P = uintptr_t;
  FORWARD(std::string, name, (), ())
  FORWARD(void, incref, (PyObject * a), (a))
  FORWARD(void, decref, (PyObject * a), (a))
  FORWARD(bool, try_incref, (const PyObjectSlot& a), (a))
  FORWARD(size_t, refcnt, (PyObject * a), (a))
  FORWARD(void, reportErrorCallback, (PyObject * a, c10::DispatchKey b), (a, b))
  FORWARD(void, python_op_registration_trampoline,
          (const OperatorHandle& a, c10::DispatchKey b, c10::DispatchKeySet c, Stack* d, bool e,
           bool f), (a, b, c, d, e, f))
  FORWARD(void, throw_abstract_impl_not_imported_error,
          (std::string a, const char* b, const char* c), (a, b, c))
  FORWARD(void, python_dispatcher, (const OperatorHandle& a, c10::DispatchKeySet b, Stack* c),
          (a, b, c))
  FORWARD(bool, is_contiguous, (T a, at::MemoryFormat b), (a, b))
  FORWARD(c10::SymBool, sym_is_contiguous, (T a, at::MemoryFormat b), (a, b))
  FORWARD(bool, is_strides_like, (T a, at::MemoryFormat b), (a, b))
  FORWARD(bool, is_non_overlapping_and_dense, (T a), (a))
  FORWARD(c10::Device, device, (T a), (a))
  FORWARD(int64_t, dim, (T a), (a))
  FORWARD(c10::IntArrayRef, strides, (T a), (a))
  FORWARD(c10::IntArrayRef, sizes, (T a), (a))
  FORWARD(c10::SymIntArrayRef, sym_sizes, (T a), (a))
  FORWARD(c10::Layout, layout, (T a), (a))
  FORWARD(int64_t, numel, (T a), (a))
  FORWARD(c10::SymInt, sym_numel, (T a), (a))
  FORWARD(c10::SymIntArrayRef, sym_strides, (T a), (a))
  FORWARD(c10::SymInt, sym_storage_offset, (T a), (a))
  FORWARD(void, trace_gpu_event_creation, (D a, P b), (a, b))
  FORWARD(void, trace_gpu_event_deletion, (D a, P b), (a, b))
  FORWARD(void, trace_gpu_event_record, (D a, P b, P c), (a, b, c))
  FORWARD(void, trace_gpu_event_wait, (D a, P b, P c), (a, b, c))
  FORWARD(void, trace_gpu_memory_allocation, (D a, P b), (a, b))
  FORWARD(void, trace_gpu_memory_deallocation, (D a, P b), (a, b))
  FORWARD(void, trace_gpu_stream_creation, (D a, P b), (a, b))
  FORWARD(void, trace_gpu_device_synchronization, (D a), (a))
  FORWARD(void, trace_gpu_stream_synchronization, (D a, P b), (a, b))
  FORWARD(void, trace_gpu_event_synchronization, (D a, P b), (a, b))
  FORWARD(void, reset_backward_hooks, (T a), (a))
};

// A tensor of bytes in a storage, from which Python takes it.
at::Tensor bytes_in(int64_t number) {
  auto* storage = reinterpret_cast<StorageImpl*>(number);
  c10::intrusive_ptr<StorageImpl> alive;
  {
    std::lock_guard<std::mutex> guard(lock);
    auto found = table.find(storage);
    if (found != table.end()) alive = found->second.storage.lock();
  }
  TORCH_CHECK(alive, "a storage is gone");
  return at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(alive), c10::DispatchKeySet(c10::DispatchKey::CPU),
      caffe2::TypeMeta::Make<uint8_t>());
}

TORCH_LIBRARY(nearmem_guard, m) {
  m.def("bytes_in(int number) -> Tensor");
  m.impl("bytes_in", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(bytes_in));
}

}  // namespace

// Functions for Python. They are called with Python's lock.

extern "C" {

State* guard_state() { return &state; }

// Put the guard before the entered mode's interpreter, and the counter before the allocator.
int guard_install() {
  if (python) return 0;
  base = c10::GetCPUAllocator();
  if (TorchDispatchModeTLS::stack_len() != 1 || !base->raw_deleter()) return 1;
  interpreter = &TorchDispatchModeTLS::get_stack_at(0)->pyinterpreter();
  python = interpreter->vtable_;
  interpreter->vtable_ = new Table;
  counter = new Counter;
  pthread_atfork([] { map_lock.lock(); }, [] { map_lock.unlock(); }, [] { map_lock.unlock(); });
  c10::SetCPUAllocator(counter, UINT8_MAX);
  return c10::GetCPUAllocator() != counter;
}

void guard_hide(const char* name, const char* argument) { hidden[name].emplace_back(argument); }

Account* guard_account(int64_t least, int (*ask)(int64_t, char*, int64_t)) {
  auto* account = new Account{};  // blocks may outlive the residency
  account->least = least;
  account->ask = ask;
  account->limit = INT64_MAX;
  return account;
}

// Keep freed mappings from now on, or return them to the system.
void guard_keep(int begins) {
  keeps = begins;
  if (!begins) trim(0);
}

// Begin or end to count this thread's memory.
Account* guard_count(Account* account) { return std::exchange(counting, account); }

// Count a storage that was made uncounted; false if its block belongs to others.
int guard_adopt(Account* account, StorageImpl* storage) {
  if (!is_own(storage)) return 0;
  Block* block = block_of(storage->mutable_data());
  Account* before = block->account.exchange(account);
  if (before != account) {
    const auto nbytes = static_cast<int64_t>(block->nbytes);
    if (before) before->used -= nbytes;
    if (account) add(account, nbytes, false);
  }
  return 1;
}

void guard_add(Account* account, int64_t nbytes) { add(account, nbytes, false); }

// Give an empty storage counted memory, or take its memory away. The caller has made room.
int guard_fill(Account* account, StorageImpl* storage, int64_t nbytes) {
  if (!storage->resizable()) return 1;
  const auto before = static_cast<int64_t>(storage->nbytes());
  if (before == nbytes) return 0;
  try {
    c10::DataPtr memory = counter->counted(nbytes, account, false);
    if (before && !is_own(storage)) account->used -= before;
    account->away += before - nbytes;
    if (!storage->allocator() || storage->allocator() == base) storage->set_allocator(counter);
    storage->set_data_ptr_noswap(std::move(memory));
    storage->set_nbytes(nbytes);
  } catch (const std::exception&) {
    return 2;
  }
  return 0;
}

// Let the guard filter this thread's operators for a account, or end that.
void guard_own(PyObject* mode, Account* account) {
  own = mode;
  std::lock_guard<std::mutex> guard(lock);
  owner = account;
  table.clear();
  scripts.clear();
  places.clear();
  state = State{};
  ++step_id;
}

void guard_track(StorageImpl* storage, int64_t nbytes, int flags) {
  std::lock_guard<std::mutex> guard(lock);
  track(storage, nbytes, static_cast<uint8_t>(flags | HELD));
}

void guard_flag(StorageImpl* storage, int flags) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = table.find(storage);
  if (found != table.end()) found->second.flags = static_cast<uint8_t>(flags | HELD);
}

void guard_untrack(StorageImpl* storage) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = table.find(storage);
  if (found == table.end()) return;
  if (found->second.slot >= 0 && static_cast<size_t>(found->second.slot) < places.size() &&
      places[found->second.slot] == storage)
    places[found->second.slot] = nullptr;
  table.erase(found);
}

void guard_see(StorageImpl* storage, int slot) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = table.find(storage);
  if (found != table.end()) put(storage, found->second, slot);
}

// Return the storage of a slot in this step, or of last step's if it was not used yet.
int64_t guard_at(int slot) {
  std::lock_guard<std::mutex> guard(lock);
  if (slot < 0 || static_cast<size_t>(slot) >= places.size() || !places[slot]) return 0;
  auto found = table.find(places[slot]);
  if (found == table.end() || found->second.slot != slot || found->second.storage.expired())
    return 0;
  return reinterpret_cast<int64_t>(places[slot]);
}

// Begin a step that is recorded.
void guard_begin() {
  std::lock_guard<std::mutex> guard(lock);
  ++step_id;
  recorded = Script{};
  state.number = 0;
  state.wakes_at = INT64_MAX;
  state.scripted = state.diverged = 0;
  state.recording = 1;
}

// Keep the recorded step as a script.
int guard_save(int64_t id, int64_t operations, const int64_t* nbytes, int64_t count) {
  state.recording = 0;
  int64_t end = 0;
  for (const Operator& each : recorded.operators) {
    if (each.begin != end) return 1;  // Python saw operations that the guard did not see
    end += each.count;
  }
  if (end != operations) return 1;
  for (int32_t slot : recorded.slots)
    if (slot < 0 || slot >= count) return 1;
  recorded.nbytes.assign(nbytes, nbytes + count);
  scripts[id] = std::move(recorded);
  recorded = Script{};
  return 0;
}

void guard_drop(int64_t id) { scripts.erase(id); }

// Follow a script from an operation on, with operations at which Python acts; 1 if impossible.
int guard_follow(int64_t id, int64_t number, const int64_t* wakes, int64_t count) {
  auto found = scripts.find(id);
  if (found == scripts.end()) return 1;
  auto& operators = found->second.operators;
  for (Operator& each : operators) {
    const int64_t* wake = std::lower_bound(wakes, wakes + count, int64_t{each.begin});
    each.wakes = wake != wakes + count && *wake < each.begin + each.count;
  }
  const auto at = std::find_if(operators.begin(), operators.end(),
                               [&](const Operator& each) { return each.begin == number; });
  if (at == operators.end()) return 1;
  script = &found->second;
  position = at - operators.begin();
  state.number = number;
  state.recording = state.diverged = 0;
  state.scripted = 1;
  return 0;
}

// Storages of the table, those without a record in Python or those seen in this step.
int64_t guard_list(int orphans, int64_t* numbers, int32_t* slots, int64_t size) {
  std::lock_guard<std::mutex> guard(lock);
  int64_t count = 0;
  for (auto at = table.begin(); at != table.end();) {
    const Entry& entry = at->second;
    if (entry.storage.expired()) {
      if (!(entry.flags & HELD)) {
        at = table.erase(at);
        continue;
      }
    } else if (orphans ? !(entry.flags & HELD) : entry.step == step_id) {
      if (count < size) {
        numbers[count] = reinterpret_cast<int64_t>(at->first);
        slots[count] = entry.step == step_id ? entry.slot : -1;
      }
      ++count;
    }
    ++at;
  }
  return count;
}

// Whether a storage is in the table without a record in Python.
int guard_is_orphan(StorageImpl* storage) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = table.find(storage);
  return found != table.end() && !(found->second.flags & HELD);
}

int64_t guard_in_use(int64_t* numbers, int64_t size) {
  int64_t count = 0;
  for (StorageImpl* storage : in_use)
    if (count < size) numbers[count++] = reinterpret_cast<int64_t>(storage);
  return count;
}

void guard_forked() {
  new (&lock) std::mutex;
  own = nullptr;
  counting = nullptr;
  state = State{};
}
}
