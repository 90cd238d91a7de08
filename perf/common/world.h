// The ranks of a perf run, over MPI: exchange of the unique id, barriers, merging of results, and nothing on the path of an
// operation.  Waits sleep between polls, so that they leave the cores to the ranks that still work, and a watchdog ends the
// process if a phase makes no progress, so that no run hangs.  Called by the programs' main files and by check.cc.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace mk::perf {

// Exit codes of the perf programs.
enum ExitCode : int {
  exitGood = 0,
  exitWrong = 1,    // wrong data, differing ranks, or bytes that do not match
  exitUsage = 2,    // arguments of the program
  exitLibrary = 3,  // a library call or an operation failed
  exitTimeout = 4,  // a phase took longer than -T, or the run than --limit
  exitSystem = 5    // MPI, CUDA or the operating system
};

class World {
 public:
  World();  // after MPI_Init
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& host() const { return host_; }
  // Among the ranks of this host.
  int localRank() const { return localRank_; }
  int localSize() const { return localSize_; }

  // Starts the watchdog: every later phase must end within this time.
  void setDeadline(int seconds);
  // The whole run must end within this time, even where this process is stuck in the end.  After setDeadline.
  void setLimit(int seconds);
  // A new phase begins; its name is part of the watchdog's message.
  void phase(const std::string& name);

  void barrier();
  void closeBarrier();  // keeps the core busy, but the ranks leave it within microseconds of each other
  void broadcast(void* data, size_t bytes);  // from rank 0
  void sum(double* data, int64_t count);     // in place, on all ranks
  void max(double* data, int64_t count);     // likewise
  int64_t sum(int64_t value);
  double max(double value);
  uint64_t max(uint64_t value);
  uint64_t min(uint64_t value);
  bool all(bool value);
  // Every rank's `bytes` bytes in rank order, on all ranks.
  std::vector<char> gather(const void* data, size_t bytes);

  // Says what went wrong, from this rank, and ends all ranks with the code.
  [[noreturn]] void die(ExitCode code, const std::string& text);

 private:
  // Starts an MPI operation, start(&request), and waits for its end.
  template <typename Start>
  void collective(Start start);
  void watch();

  int rank_ = 0, size_ = 1, localRank_ = 0, localSize_ = 1;
  std::string host_;
  MPI_Request request_ = MPI_REQUEST_NULL;  // of the operation under way
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread watchdog_;
  std::string phase_ = "start";
  std::chrono::seconds limit_{0};
  std::chrono::steady_clock::time_point deadline_;
  int runLimit_ = 0;  // seconds; 0: none
  std::chrono::steady_clock::time_point runEnd_ = std::chrono::steady_clock::time_point::max();
  bool stop_ = false;
};

}  // namespace mk::perf
