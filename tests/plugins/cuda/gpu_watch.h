// A kernel that fills the GPU and checks chunks the moment their flags are seen.  gpu_watch.cu has it; where there is no
// compiler for it, gpu_watch_none.cc takes its place.  Used by gpu_traffic.cc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace test {

// What is written: the flag of each chunk and its words.
#ifdef __CUDACC__
#define MK_TEST_BOTH __host__ __device__
#else
#define MK_TEST_BOTH
#endif
MK_TEST_BOTH constexpr uint64_t watchedFlag(uint64_t chunk) { return chunk + 1; }
MK_TEST_BOTH constexpr uint64_t watchedWord(uint64_t chunk, uint64_t word) {
  return (chunk + 1) * 0x9e3779b97f4a7c15u + word;
}
#undef MK_TEST_BOTH

class Watch {
 public:
  // flags: one word for each chunk; payload: chunks of `words` words, one behind the other.  On this thread's GPU.
  Watch(const std::byte* flags, const std::byte* payload, uint64_t chunks, uint64_t words);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void start();  // ends by itself, after 10 s at most
  bool done();
  uint64_t missing() const;  // flags that did not come
  uint64_t wrong() const;    // words
  static bool available();

 private:
  struct State;
  State* const state_;
};

}  // namespace test
