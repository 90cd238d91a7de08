// The command queue on GPUs: agents of one GPU post, the library's proxy reads, a transport carries.  `gpu_queue check` proves
// that no command is lost and every payload arrives; `gpu_queue measure` prints times as well: round trips beside those of a
// bare hand-off between GPU and CPU, commands per second, and 256 KiB chunks through loopback.  Two ranks, each a process;
// with one GPU they share it, and what needs agents on both is left out.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "host/affinity.h"
#include "queue/agents.h"
#include "queue/rig.h"

namespace {

using namespace mk;
using gpu::Clocks;
using gpu::Job;
using gpu::Rig;
using gpu::Trip;
using Clock = std::chrono::steady_clock;

constexpr int kPairSeconds = 100;  // two processes have this long
constexpr uint64_t kChunkBytes = 256 << 10;
constexpr double kCardGBps = 50;
constexpr uint64_t kWorkspace = uint64_t{256} << 20;

bool measuring = false;
int gpus = 0;

double secondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

template <class T>
class OnDevice {
 public:
  explicit OnDevice(uint64_t count) : count_(count) {
    CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)));
    CUDA(cudaMemset(data_, 0, count * sizeof(T)));
    CUDA(cudaDeviceSynchronize());
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* data() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> copy(count_);
    CUDA(cudaMemcpy(copy.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return copy;
  }

 private:
  const uint64_t count_;
  T* data_ = nullptr;
};

// ---- Round trips -----------------------------------------------------------------------------------------------------

struct Times {
  OnDevice<Trip> trips;
  OnDevice<Clocks> clocks{1};
  const uint64_t rounds;
  explicit Times(uint64_t count) : trips(count), rounds(count) {}

  // Of all rounds but the first tenth, in microseconds; dies if a round is missing or a payload wrong.
  std::vector<double> sorted(double share, const char* name) const {
    const Clocks all = clocks.read()[0];
    if (all.rounds != rounds)
      gpu::die(std::string(name) + ": " + std::to_string(all.rounds) + " rounds of " + std::to_string(rounds));
    if (all.wrong != 0) gpu::die(std::string(name) + ": " + std::to_string(all.wrong) + " payloads are wrong");
    const double us = static_cast<double>(all.ns) / static_cast<double>(all.cycles) / 1000 * share;
    std::vector<double> result;
    const std::vector<Trip> each = trips.read();
    for (uint64_t i = rounds / 10; i < rounds; ++i) result.push_back(static_cast<double>(each[i]) * us);
    std::sort(result.begin(), result.end());
    return result;
  }
  // The median.
  double print(const char* name, double share = 1) const {
    const std::vector<double> us = sorted(share, name);
    const auto at = [&](double q) { return us[static_cast<size_t>(q * static_cast<double>(us.size() - 1))]; };
    if (measuring)
      std::printf("  %-58s median %7.2f us  99%% %7.2f  [10%% %.2f, 90%% %.2f]\n", name, at(0.5), at(0.99), at(0.1),
                  at(0.9));
    else
      std::printf("ok   %s: %llu rounds\n", name, static_cast<unsigned long long>(rounds));
    return at(0.5);
  }
};

// A word each way in pinned memory, a thread that answers, and nothing else.
double bareHandOff(const Rig& rig, uint64_t rounds) {
  uint64_t* words = nullptr;
  constexpr size_t kApart = 16;
  CUDA(cudaHostAlloc(reinterpret_cast<void**>(&words), 2 * kApart * 8, cudaHostAllocPortable | cudaHostAllocMapped));
  std::memset(words, 0, 2 * kApart * 8);
  std::atomic<bool> stop{false};
  std::thread answers([&, gpu = rig.pciBusId()] {
    moveNear(gpu);
    uint64_t seen = 0;
    while (!stop.load(std::memory_order_relaxed)) {
      const uint64_t now = std::atomic_ref<uint64_t>(words[0]).load(std::memory_order_acquire);
      if (now == seen) continue;
      seen = now;
      std::atomic_ref<uint64_t>(words[kApart]).store(now, std::memory_order_release);
    }
  });
  const Times times(rounds);
  CUDA(gpu::bare(words, words + kApart, rounds, times.trips.data(), times.clocks.data(), rig.stream()));
  CUDA(cudaStreamSynchronize(rig.stream()));  // the kernel's own waits have an end
  stop.store(true);
  answers.join();
  CUDA(cudaFreeHost(words));
  return times.print("bare hand-off GPU, pinned word, CPU, pinned word, GPU");
}

void roundTrips(Rig& rig, const std::string& carrier, uint64_t bytes, uint64_t rounds, uint64_t pauseNs, double bare) {
  const uint64_t at = rig.memory().heapLayout.data(0);
  const protocol::Write write{rig.peer(), at, at, bytes, sched::kControlSlots, 0};
  const std::string what =
      carrier + ", " + std::to_string(bytes) + " bytes" + (pauseNs != 0 ? ", after 500 us of rest" : "");
  const auto measure = [&](gpu::Until until, const std::string& name) {
    const Times times(rounds);
    CUDA(gpu::roundTrips(rig.memory(), write, rounds, pauseNs, until, times.trips.data(), times.clocks.data(),
                         rig.stream()));
    rig.finish("round trips");
    rig.settle(rounds, "round trips");
    return times.print((name + ": " + what).c_str());
  };
  const double read = measure(gpu::Until::credit, "command to credit");
  const double done = measure(gpu::Until::completion, "command to completion");
  if (measuring && bare != 0)
    std::printf("    of the bare hand-off: credit %.2f, completion %.2f\n", read / bare, done / bare);
}

void pingPong(Rig& rig, uint64_t rounds) {
  const uint64_t at = rig.memory().heapLayout.data(0);
  const gpu::Game game = {rig.first(), rig.peer(), at, at + gpu::kPlaces * 8, uint64_t{1} << 16, rounds};
  const Times times(rounds);
  rig.meet();
  CUDA(gpu::pingPong(rig.memory(), game, times.trips.data(), times.clocks.data(), rig.stream()));
  rig.finish("ping-pong");
  rig.settle(rounds, "ping-pong");
  const char* const name = "half of a round trip GPU to GPU, 8 bytes";
  if (rig.first())
    times.print(name, 0.5);
  else
    static_cast<void>(times.sorted(0.5, name));
}

// ---- Many commands ---------------------------------------------------------------------------------------------------

struct Batches {
  uint64_t before[9] = {};
  explicit Batches(const Rig& rig) { read(rig, before); }
  static void read(const Rig& rig, uint64_t* to) {
    for (int i = 0; i < 9; ++i) to[i] = rig.counters().batchSize[i].load();
  }
  std::string since(const Rig& rig) const {
    uint64_t now[9] = {};
    read(rig, now);
    std::string text;
    for (int i = 8; i > 0; --i)
      if (now[i] != before[i])
        text += (text.empty() ? "" : " ") + std::to_string(i) + "x" + std::to_string(now[i] - before[i]);
    return text;
  }
};

struct Pass {
  Job job;
  uint32_t blocks = 1;
  bool both = false;  // directions; else rank 0 to rank 1
  bool carried = true;
};

// Seconds from the launch until all commands have completed, on this rank; 0 if it has only received.  What has arrived is
// checked.
double run(Rig& rig, const Pass& pass, const char* what) {
  const Job& job = pass.job;
  const bool sends = pass.both || rig.first(), receives = pass.carried && (pass.both || !rig.first());
  Job arrived = job;
  arrived.node = rig.peer();
  const kernels::RankMemory& memory = rig.memory();
  if (receives) CUDA(cudaMemsetAsync(memory.heaps[0] + job.destinationAt, 0x5c, job.count * job.bytes, rig.stream()));
  if (sends && !job.stamp) CUDA(gpu::fill(memory, job, rig.stream()));
  rig.finish(what);
  rig.meet();
  double seconds = 0;
  if (sends) {
    const Clock::time_point begin = Clock::now();
    CUDA(gpu::post(memory, job, pass.blocks, rig.stream()));
    rig.settle(job.count, what);
    seconds = secondsSince(begin);
    rig.finish(what);
  }
  rig.meet();
  uint64_t wrong = 0;
  if (receives) {
    const OnDevice<unsigned long long> counter(1);
    CUDA(gpu::check(memory, arrived, counter.data(), rig.stream()));
    rig.finish(what);
    wrong = counter.read()[0];
  }
  if ((wrong = rig.sum(wrong)) != 0)
    gpu::die(std::string(what) + ": " + std::to_string(wrong) + " words or flags are wrong");
  return seconds;
}

uint64_t nextEpoch() {
  static uint64_t epoch = uint64_t{1} << 20;  // above those of the round trips
  return ++epoch;
}

// Commands per second, of the best of three passes.
double rate(Rig& rig, const std::string& carrier, uint32_t blocks, uint64_t commands) {
  const uint64_t at = rig.memory().heapLayout.data(0);
  Pass pass;
  pass.blocks = blocks;
  pass.carried = carrier != "instant";
  pass.job = {rig.peer(), at, at + commands * 8, 8, commands, 0, true};
  const Batches batches(rig);
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    pass.job.epoch = nextEpoch();
    best = std::max(best, static_cast<double>(commands) / run(rig, pass, "commands"));
  }
  if (!rig.first()) return 0;
  if (measuring)
    std::printf("  %-9s %4u agents  %8.3f million commands/s   batches of three passes %s\n", carrier.c_str(), blocks,
                best / 1e6, batches.since(rig).c_str());
  else
    std::printf("ok   %s: 3 x %llu commands of %u agents\n", carrier.c_str(), static_cast<unsigned long long>(commands),
                blocks);
  return best;
}

void chunks(Rig& rig, const std::string& carrier, uint32_t blocks, bool both, uint64_t count) {
  const uint64_t at = rig.memory().heapLayout.data(0);
  Pass pass;
  pass.blocks = blocks;
  pass.both = both;
  pass.job = {rig.peer(), at, at + count * kChunkBytes, kChunkBytes, count, 0, false};
  const Batches batches(rig);
  std::vector<double> speeds;
  for (int i = 0; i < (measuring ? 7 : 2); ++i) {
    pass.job.epoch = nextEpoch();
    const double seconds = run(rig, pass, "chunks");
    if (seconds != 0) speeds.push_back(static_cast<double>(count * kChunkBytes) / seconds / 1e9);
  }
  if (!rig.first()) return;
  std::sort(speeds.begin(), speeds.end());
  const double speed = speeds[speeds.size() / 2];
  if (measuring)
    std::printf("  %-19s %4u agents  %-14s %8.2f GB/s a direction  %.2f of %.0f  batches %s\n", carrier.c_str(), blocks,
                both ? "both ways" : "one way", speed, speed / kCardGBps, kCardGBps, batches.since(rig).c_str());
  else
    std::printf("ok   %s: chunks of %u agents, %s\n", carrier.c_str(), blocks, both ? "both ways" : "one way");
}

// ---- Pairs of processes ----------------------------------------------------------------------------------------------

using Work = std::function<void(int rank, const mkUniqueId_t& id)>;

void enterDevice(int rank) { CUDA(cudaSetDevice(rank % gpus)); }

// Nothing of CUDA or of the library lives in the parent.
bool pair(const char* loopbackGBps, const Work& work) {
  std::fflush(stdout);
  int ids[2];
  if (pipe(ids) != 0) gpu::die("no pipe");
  pid_t children[2] = {};
  for (int rank = 0; rank < 2; ++rank) {
    children[rank] = fork();
    if (children[rank] < 0) gpu::die("no process");
    if (children[rank] != 0) continue;
    alarm(kPairSeconds);
    setenv("MKERNEL_PLATFORM", "cuda", 1);
    setenv("MKERNEL_LOOPBACK_GBPS", loopbackGBps, 1);
    try {
      enterDevice(rank);
      mkUniqueId_t id;
      if (rank == 0) {
        Bootstrap::createId(&id);
        if (write(ids[1], &id, sizeof(id)) != sizeof(id)) gpu::die("the pipe is broken");
      } else if (read(ids[0], &id, sizeof(id)) != sizeof(id)) {
        gpu::die("the pipe is broken");
      }
      work(rank, id);
    } catch (const std::exception& e) {
      gpu::die(e.what());
    }
    std::fflush(stdout);
    _exit(0);
  }
  close(ids[0]);
  close(ids[1]);
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    good &= waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return good;
}

int countGpus() {
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    _exit(cudaGetDeviceCount(&count) == cudaSuccess ? std::min(count, 100) : 0);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

constexpr uint32_t kAgents[] = {1, 8, 32, 132};

void queueAlone(int rank, const mkUniqueId_t& id) {
  Rig rig(rank, id, "instant", kWorkspace);
  const uint64_t rounds = measuring ? 20000 : 500;
  if (rig.first()) {
    const double bare = bareHandOff(rig, rounds);
    roundTrips(rig, "instant", 0, rounds, 0, bare);
    roundTrips(rig, "instant", 0, measuring ? 2000 : 100, 500'000, 0);
    bareHandOff(rig, rounds);
  }
  double best = 0;
  for (const uint32_t blocks : kAgents)
    best = std::max(best, rate(rig, "instant", blocks, measuring ? uint64_t{1} << 17 : 8192));
  if (measuring && rig.first())
    std::printf("  in chunks of 256 KiB the proxy's rate alone is %.0f GB/s, %.1f of a card's %.0f\n",
                best * kChunkBytes / 1e9, best * kChunkBytes / 1e9 / kCardGBps, kCardGBps);
}

void overLoopback(int rank, const mkUniqueId_t& id) {
  const uint64_t count = measuring ? 2048 : 64;
  Rig rig(rank, id, "loopback", sched::HeapLayout::workspaceFor(0, 2 * count * kChunkBytes) + kWorkspace);
  const uint64_t rounds = measuring ? 5000 : 500;
  if (rig.first()) {
    roundTrips(rig, "loopback", 0, rounds, 0, 0);
    roundTrips(rig, "loopback", 8, rounds, 0, 0);
  }
  if (gpus > 1)
    pingPong(rig, rounds);
  else if (rig.first())
    std::printf("     no ping-pong: it needs two GPUs\n");
  for (const uint32_t blocks : kAgents) rate(rig, "loopback", blocks, measuring ? 1u << 15 : 4096);
  for (const uint32_t blocks : {1u, 8u, 32u}) chunks(rig, "loopback", blocks, false, count);
  chunks(rig, "loopback", 8, true, count);
}

void overCard(int rank, const mkUniqueId_t& id) {
  const uint64_t count = measuring ? 2048 : 64;
  Rig rig(rank, id, "loopback", sched::HeapLayout::workspaceFor(0, 2 * count * kChunkBytes) + kWorkspace);
  for (const uint32_t blocks : {1u, 8u}) chunks(rig, "loopback at 50 GB/s", blocks, false, count);
  chunks(rig, "loopback at 50 GB/s", 8, true, count);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "check";
  if (mode != "check" && mode != "measure") {
    std::printf("usage: gpu_queue [check|measure]\n");
    return 2;
  }
  gpus = countGpus();
  if (gpus == 0) {
    std::printf("SKIP: no GPU\n");
    return 77;
  }
  measuring = mode == "measure";
  std::printf("# two ranks on %d GPU%s\n", std::min(gpus, 2), gpus > 1 ? "s" : "");
  const bool good = pair("0", queueAlone) && pair("0", overLoopback) && pair("50", overCard);
  std::printf("%s\n", good ? "PASSED" : "FAILED");
  return good ? 0 : 1;
}
