// Loops on the thread pool that torch has already: libgomp's, found in the process.
#pragma once
#include <atomic>
#include <cstddef>

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
    long num_tasks;
    const Body& body;
  } shared{{0}, num_tasks, body};
  detail::run(
      [](void* data) {
        auto& s = *static_cast<Shared*>(data);
        for (long task; (task = s.next.fetch_add(1, std::memory_order_relaxed)) < s.num_tasks;)
          s.body(task);
      },
      &shared, int(num_tasks < num_threads ? num_tasks : num_threads));
}

// Memory of the calling thread, kept for its next call; aligned to 64 bytes, with 64 to spare.
void* workspace(int slot, size_t bytes);
constexpr int FIRST = 0, SECOND = 1, SUMS = 2, SMALL = 3, NUM_SLOTS = 4;

}  // namespace bitcycle
