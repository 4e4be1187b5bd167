#include "parallel.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cstdlib>
#include <new>

namespace bitcycle {
namespace {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

// The pool's threads do not survive a fork, and libgomp would wait for them: a child runs alone.
bool is_forked = false;

const int is_watching = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

Parallel find_pool() {
  return reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
}

Parallel pool() {
  static const Parallel found = find_pool();
  return found;
}

using ThreadNumber = int (*)();

ThreadNumber find_thread_number() {
  return reinterpret_cast<ThreadNumber>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));
}

struct Memory {
  void* at = nullptr;
  size_t size = 0;
  ~Memory() { std::free(at); }
};

}  // namespace

bool has_pool() { return pool() != nullptr && !is_forked; }

void detail::run(void (*body)(void*), void* data, int num_threads) {
  pool()(body, data, unsigned(num_threads), 0);
}

int detail::thread_number() {
  static const ThreadNumber found = find_thread_number();
  return found ? found() : 0;
}

void* workspace(int slot, size_t bytes) {
  thread_local Memory memory[NUM_SLOTS];
  Memory& m = memory[slot];
  if (bytes + 64 > m.size) {
    std::free(m.at);
    m.at = nullptr;
    m.size = (bytes + 64 + bytes / 4 + 4095) / 4096 * 4096;
    m.at = std::aligned_alloc(64, m.size);
    if (!m.at) {
      m.size = 0;
      throw std::bad_alloc();
    }
  }
  return m.at;
}

}  // namespace bitcycle
