// What Python asks a library before it trusts it.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>

#include "isa.h"
#include "parallel.h"

#ifndef BITCYCLE_VERSION
#define BITCYCLE_VERSION "unknown"
#endif

// Of the sources that this library was made from.
BITCYCLE_API const char* bitcycle_version() { return BITCYCLE_VERSION; }

BITCYCLE_API int bitcycle_has_pool() { return bitcycle::has_pool(); }

// How many threads run a loop that is given `num_threads`: each task waits for the others, a second
// at most.
BITCYCLE_API int64_t bitcycle_count_threads(int64_t num_threads) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(1);
  std::atomic<int64_t> arrived{0};
  std::mutex guard;
  std::set<std::thread::id> threads;
  bitcycle::parallel_for(num_threads, int(num_threads), [&](long) {
    {
      const std::lock_guard<std::mutex> lock(guard);
      threads.insert(std::this_thread::get_id());
    }
    ++arrived;
    if (bitcycle::has_pool())
      while (arrived < num_threads && Clock::now() < end) std::this_thread::yield();
  });
  return int64_t(threads.size());
}
