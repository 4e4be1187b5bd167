// Loops on the thread pool that torch has already: libgomp's, found in the process.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>

namespace bitcycle {

bool has_pool();  // whether OpenMP was found; without it loops run on the calling thread

namespace detail {
constexpr int MAX_THREADS = 256;

// Consecutive tasks of one thread; others take from it when they have none left.
struct alignas(64) Share {
  std::atomic<long> next;
  long end;
  long take() { return next.fetch_add(1, std::memory_order_relaxed); }
};

void run(void (*body)(void*), void* data, int num_threads);
int thread_number();  // of the pool, from 0
}  // namespace detail

// Calls body(task) for 0 <= task < num_tasks, each once, on any thread in any order. A thread
// begins with the same part of the tasks in every loop: that part of a tensor is in its cache.
template <typename Body>
void parallel_for(long num_tasks, int num_threads, const Body& body) {
  if (num_tasks <= 1 || num_threads <= 1 || !has_pool()) {
    for (long task = 0; task < num_tasks; ++task) body(task);
    return;
  }
  struct Shared {
    int num_shares;
    std::atomic<bool> has_failed;
    const Body& body;
    detail::Share shares[detail::MAX_THREADS];
  } shared{std::min(num_threads, detail::MAX_THREADS), {false}, body, {}};
  if (num_tasks < shared.num_shares) shared.num_shares = int(num_tasks);
  for (int i = 0; i < shared.num_shares; ++i) {
    shared.shares[i].next = num_tasks * i / shared.num_shares;
    shared.shares[i].end = num_tasks * (i + 1) / shared.num_shares;
  }
  detail::run(
      [](void* data) {
        auto& s = *static_cast<Shared*>(data);
        const int own = detail::thread_number();
        try {
          for (int i = 0; i < s.num_shares; ++i) {
            detail::Share& share = s.shares[(own + i) % s.num_shares];
            for (long task; (task = share.take()) < share.end;) s.body(task);
          }
        } catch (...) {  // an exception must not leave a thread of the pool
          s.has_failed = true;
        }
      },
      &shared, shared.num_shares);
  if (shared.has_failed) throw std::bad_alloc();
}

// Memory of the calling thread, kept for its next call; aligned to 64 bytes, with 64 to spare.
enum Slot {
  FIRST, SECOND, SUMS, SCALES, ROW_ARRAYS, SMALL,  // of products
  FIRST_OPERAND, SECOND_OPERAND, ERROR_OPERAND, FIRST_CODES, SECOND_CODES, RANGES, TURNED,
  RESULTS,  // that are not yet in their place or form
  NUM_SLOTS
};
void* workspace(int slot, size_t bytes);

template <typename T>
T* new_array(Slot slot, long count) {
  return static_cast<T*>(workspace(slot, size_t(count) * sizeof(T)));
}

}  // namespace bitcycle
