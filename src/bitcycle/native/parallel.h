// Loops on the thread pool that torch has already: libgomp's, found in the process.
#pragma once
#include <atomic>
#include <cstddef>
#include <new>

namespace bitcycle {

bool has_pool();  // whether OpenMP was found; without it loops run on the calling thread

namespace detail {
void run(void (*body)(void*), void* data, int num_threads);
}

// Calls body(task) for 0 <= task < num_tasks, each once, on any thread in any order.
template <typename Body>
void parallel_for(long num_tasks, int num_threads, const Body& body) {
  if (num_tasks <= 1 || num_threads <= 1 || !has_pool()) {
    for (long task = 0; task < num_tasks; ++task) body(task);
    return;
  }
  struct Shared {
    std::atomic<long> next;
    std::atomic<bool> has_failed;
    long num_tasks;
    const Body& body;
  } shared{{0}, {false}, num_tasks, body};
  detail::run(
      [](void* data) {
        auto& s = *static_cast<Shared*>(data);
        try {
          for (long task; (task = s.next.fetch_add(1, std::memory_order_relaxed)) < s.num_tasks;)
            s.body(task);
        } catch (...) {  // an exception must not leave a thread of the pool
          s.has_failed = true;
        }
      },
      &shared, int(num_tasks < num_threads ? num_tasks : num_threads));
  if (shared.has_failed) throw std::bad_alloc();
}

// Memory of the calling thread, kept for its next call; aligned to 64 bytes, with 64 to spare.
enum Slot { FIRST, SECOND, SUMS, SCALES, ROW_ARRAYS, SMALL, NUM_SLOTS };
void* workspace(int slot, size_t bytes);

template <typename T>
T* new_array(Slot slot, long count) {
  return static_cast<T*>(workspace(slot, size_t(count) * sizeof(T)));
}

}  // namespace bitcycle
