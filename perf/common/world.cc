// The ranks of a perf run; see world.h.
#include "world.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace mk::perf {
namespace {
using Clock = std::chrono::steady_clock;
constexpr int kGraceSeconds = 15;
}  // namespace

World::World() {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) == 0) host_ = name;
  if (host_.empty()) host_ = "unknown";
  MPI_Comm local = MPI_COMM_NULL;
  if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local) == MPI_SUCCESS) {
    MPI_Comm_rank(local, &localRank_);
    MPI_Comm_size(local, &localSize_);
    MPI_Comm_free(&local);
  }
}

World::~World() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
}

void World::setDeadline(int seconds) {
  {
    std::lock_guard lock(mutex_);
    limit_ = std::chrono::seconds(seconds);
    deadline_ = Clock::now() + limit_;
  }
  if (!watchdog_.joinable()) watchdog_ = std::thread([this] { watch(); });
}

void World::setLimit(int seconds) {
  {
    std::lock_guard lock(mutex_);
    runLimit_ = seconds;
    runEnd_ = Clock::now() + std::chrono::seconds(seconds);
  }
  changed_.notify_all();
  // For what comes after the watchdog: leaving MPI, the libraries' own ends.  The signal's default is the end.
  alarm(static_cast<unsigned>(seconds + kGraceSeconds));
}

void World::phase(const std::string& name) {
  std::lock_guard lock(mutex_);
  phase_ = name;
  deadline_ = Clock::now() + limit_;
}

void World::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const Clock::time_point deadline = std::min(deadline_, runEnd_);
    changed_.wait_until(lock, deadline);
    if (stop_ || Clock::now() < std::min(deadline_, runEnd_)) continue;
    if (runEnd_ <= deadline_) {
      fprintf(stderr, "rank %d on %s, process %d: the run has not ended within %d s (--limit); it was in '%s'\n", rank_,
              host_.c_str(), static_cast<int>(getpid()), runLimit_, phase_.c_str());
    } else {
      fprintf(stderr, "rank %d on %s, process %d: no end of '%s' within %lld s (-T)\n", rank_, host_.c_str(),
              static_cast<int>(getpid()), phase_.c_str(), static_cast<long long>(limit_.count()));
    }
    // The main thread may be stuck anywhere, so MPI cannot be called; mpirun ends the other ranks.
    _exit(exitTimeout);
  }
}

template <typename Start>
void World::collective(Start start) {
  using namespace std::chrono_literals;
  start(&request_);
  for (auto pause = 10us;; pause = std::min(pause * 2, std::chrono::microseconds(1000us))) {
    int done = 0;
    if (MPI_Test(&request_, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) die(exitSystem, "MPI_Test failed");
    if (done) return;
    std::this_thread::sleep_for(pause);
  }
}

void World::barrier() {
  collective([&](MPI_Request* request) { MPI_Ibarrier(MPI_COMM_WORLD, request); });
}

void World::closeBarrier() {
  barrier();  // sleeps until the last rank has come; then all are near
  MPI_Barrier(MPI_COMM_WORLD);
}

void World::broadcast(void* data, size_t bytes) {
  collective(
      [&](MPI_Request* request) { MPI_Ibcast(data, static_cast<int>(bytes), MPI_BYTE, 0, MPI_COMM_WORLD, request); });
}

void World::sum(double* data, int64_t count) {
  // Pieces keep within MPI's int counts and the memory of its internal copies small.
  constexpr int64_t kPiece = 1 << 20;
  for (int64_t at = 0; at < count; at += kPiece) {
    collective([&](MPI_Request* request) {
      // collective() has waited for the one before, which the check does not see.
      // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker)
      MPI_Iallreduce(MPI_IN_PLACE, data + at, static_cast<int>(std::min(kPiece, count - at)), MPI_DOUBLE, MPI_SUM,
                     MPI_COMM_WORLD, request);
    });
  }
}

void World::max(double* data, int64_t count) {
  collective([&](MPI_Request* request) {
    MPI_Iallreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD, request);
  });
}

int64_t World::sum(int64_t value) {
  collective([&](MPI_Request* request) {
    MPI_Iallreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD, request);
  });
  return value;
}

double World::max(double value) {
  collective([&](MPI_Request* request) {
    MPI_Iallreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD, request);
  });
  return value;
}

uint64_t World::max(uint64_t value) {
  collective([&](MPI_Request* request) {
    MPI_Iallreduce(MPI_IN_PLACE, &value, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD, request);
  });
  return value;
}

uint64_t World::min(uint64_t value) {
  collective([&](MPI_Request* request) {
    MPI_Iallreduce(MPI_IN_PLACE, &value, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD, request);
  });
  return value;
}

bool World::all(bool value) { return min(uint64_t{value}) == 1; }

std::vector<char> World::gather(const void* data, size_t bytes) {
  std::vector<char> result(bytes * static_cast<size_t>(size_));
  collective([&](MPI_Request* request) {
    MPI_Iallgather(data, static_cast<int>(bytes), MPI_BYTE, result.data(), static_cast<int>(bytes), MPI_BYTE,
                   MPI_COMM_WORLD, request);
  });
  return result;
}

void World::die(ExitCode code, const std::string& text) {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;  // the watchdog's, whose status would be another; the alarm stays
  }
  fflush(stdout);
  fprintf(stderr, "rank %d on %s, process %d: %s\n", rank_, host_.c_str(), static_cast<int>(getpid()), text.c_str());
  // A failure usually shows on several ranks at about the same time: let each say its text before all are ended.  Then one
  // after the other, also on a busy machine, for mpirun of Open MPI 4.1 may crash where several ranks abort at once; the first
  // one's call ends the rest.
  std::this_thread::sleep_for(std::chrono::milliseconds(300 + 700 * std::min(rank_, 5)));
  MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

}  // namespace mk::perf
