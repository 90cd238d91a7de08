// mk_queue_perf: latency, rate and bandwidth of one transport plugin between two ranks of an MPI job, by the plugin's public
// table alone: what the library's proxy gets from it.  Every payload is checked.  perf/README.md explains the output.
//
// A row consists of passes.  In a pass every write has a slot of its own; before it the receiver poisons the slots, after it
// each slot must hold the sender's pattern and what lies behind them must be unchanged.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/options.h"
#include "common/world.h"
#include "queue/link.h"
#include "queue/options.h"
#include "queue/report.h"

namespace mk::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLeastMemory = 32 << 20;  // to send from and to receive in
constexpr size_t kGuardBytes = 4096;       // behind the slots
constexpr int kPoison = 0x5c;
constexpr int kBatch = 8;  // the library's proxy posts what has gathered; so many stand for it
constexpr int64_t kEnoughBytes = 1 << 30, kFewestWrites = 16;

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void fillPattern(std::byte* data, size_t bytes, int rank) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) + 1);
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = random();
    memcpy(data + at, &word, std::min<size_t>(8, bytes - at));
  }
}

class QueuePerf {
 public:
  // The report is rank 0's; the other has none.
  QueuePerf(World& world, const QueueOptions& options, const Plugin& plugin, QueueReport* report);
  void run();

 private:
  void runRow(Kind kind, size_t bytes, int batch, int64_t writes);
  void pass(size_t count, bool measured);
  void pingPong(size_t count, bool measured);
  void send(size_t count, bool measured);
  void receive(size_t count);
  void spoil();
  int64_t wrongBytes(size_t count) const;

  World& world_;
  const QueueOptions& options_;
  QueueReport* const report_;
  const size_t memory_;
  Link link_;
  std::vector<std::byte> expected_;
  const int maxBatch_;
  uint32_t next_ = 1;              // number of the next write
  QueueRow row_;                   // under way
  std::vector<double> halfTrips_;  // of it, in microseconds
};

QueuePerf::QueuePerf(World& world, const QueueOptions& options, const Plugin& plugin, QueueReport* report)
    : world_(world),
      options_(options),
      report_(report),
      memory_(std::max({kLeastMemory, static_cast<size_t>(options.bytesMax), static_cast<size_t>(options.smallBytes)})),
      link_(world, plugin, options.device, memory_ + kGuardBytes, options.queues, options.timeoutSeconds * 1000),
      expected_(memory_),
      maxBatch_(static_cast<int>(std::min<uint32_t>(kBatch, plugin.properties().maxBatch))) {
  world_.phase("making patterns");
  fillPattern(link_.source(), memory_, world_.rank());
  fillPattern(expected_.data(), memory_, 1 - world_.rank());
  memset(link_.received(), kPoison, memory_ + kGuardBytes);
}

// Rank 0 sends `count` writes one by one, each when the answer to the one before has come.
void QueuePerf::pingPong(size_t count, bool measured) {
  const bool first = world_.rank() == 0;
  const uint32_t own = first ? next_ : next_ + static_cast<uint32_t>(count);
  for (size_t i = 0; i < count; ++i) {
    if (!first) link_.awaitArrival(i);
    const mkTransportWrite_t write = link_.write(i, row_.bytes, own + static_cast<uint32_t>(i));
    const Clock::time_point start = Clock::now();
    link_.postOne(write);
    if (!first) continue;
    link_.awaitArrival(i);
    if (measured) halfTrips_.push_back(secondsSince(start) * 1e6 / 2);
  }
}

void QueuePerf::send(size_t count, bool measured) {
  std::vector<mkTransportWrite_t> writes(static_cast<size_t>(row_.batch));
  const Clock::time_point start = Clock::now();
  for (size_t done = 0; done < count;) {
    const size_t offered = std::min(writes.size(), count - done);
    for (size_t i = 0; i < offered; ++i) {
      writes[i] = link_.write(done + i, row_.bytes, next_ + static_cast<uint32_t>(done + i));
    }
    const size_t accepted = static_cast<size_t>(link_.post(writes.data(), static_cast<int>(offered)));
    if (measured) ++row_.accepted[accepted];
    done += accepted;
    link_.poll();
  }
  link_.awaitArrival(0);  // the receiver has them all
  if (measured) row_.seconds += secondsSince(start);
}

void QueuePerf::receive(size_t count) {
  for (size_t i = 0; i < count; ++i) link_.awaitArrival(i);
  mkTransportWrite_t answer = link_.write(0, 0, next_ + static_cast<uint32_t>(count));
  link_.postOne(answer);
}

// One byte of what rank 0 sends first; done a second time, it is right again.
void QueuePerf::spoil() {
  if (options_.corrupt && options_.corruptKind == row_.kind && world_.rank() == 0) {
    link_.source()[row_.bytes / 2] ^= std::byte{1};
  }
}

int64_t QueuePerf::wrongBytes(size_t count) const {
  const size_t bytes = count * row_.bytes;
  const std::byte* received = link_.received();
  int64_t wrong = 0;
  if (memcmp(received, expected_.data(), bytes) != 0) {
    for (size_t i = 0; i < bytes; ++i) wrong += received[i] != expected_[i];
  }
  for (size_t i = bytes; i < bytes + kGuardBytes; ++i) wrong += received[i] != std::byte{kPoison};
  return wrong;
}

void QueuePerf::pass(size_t count, bool measured) {
  const bool pinging = row_.kind == Kind::latency;
  const bool receives = pinging || world_.rank() == 1;
  world_.phase(std::string(nameOf(row_.kind)) + ", " + std::to_string(row_.bytes) + " bytes, " + std::to_string(count) +
               " writes");
  const uint32_t later = next_ + static_cast<uint32_t>(count);
  link_.expect(world_.rank() == 0 ? later : next_, receives ? count : 1);
  spoil();
  link_.barrier();
  if (pinging) {
    pingPong(count, measured);
  } else if (receives) {
    receive(count);
  } else {
    send(count, measured);
  }
  link_.awaitSent();
  link_.barrier();
  spoil();
  next_ = later + static_cast<uint32_t>(pinging ? count : 1);
  if (!receives) return;
  row_.wrong += wrongBytes(count);
  memset(link_.received(), kPoison, count * row_.bytes + kGuardBytes);
}

void QueuePerf::runRow(Kind kind, size_t bytes, int batch, int64_t writes) {
  row_ = QueueRow();
  row_.kind = kind;
  row_.bytes = bytes;
  row_.batch = batch;
  row_.writes = writes;
  row_.accepted.assign(static_cast<size_t>(batch) + 1, 0);
  halfTrips_.clear();
  const int64_t most = static_cast<int64_t>(std::min(Link::kSlots, memory_ / bytes));
  const int64_t warmup = std::min({options_.warmup, most, writes});
  if (warmup > 0) pass(static_cast<size_t>(warmup), false);
  for (int64_t left = writes; left > 0;) {
    const int64_t now = std::min(left, most);
    pass(static_cast<size_t>(now), true);
    left -= now;
  }
  row_.wrong = world_.sum(row_.wrong);
  if (!report_) return;
  if (kind == Kind::latency) {
    std::sort(halfTrips_.begin(), halfTrips_.end());
    row_.medianUs = halfTrips_[halfTrips_.size() / 2];
    row_.p99Us = halfTrips_[(halfTrips_.size() * 99 + 99) / 100 - 1];
  }
  report_->row(row_);
}

void QueuePerf::run() {
  const size_t small = static_cast<size_t>(options_.smallBytes);
  runRow(Kind::latency, small, 1, options_.writes);
  runRow(Kind::rate, small, 1, options_.writes);
  if (maxBatch_ > 1) runRow(Kind::rate, small, maxBatch_, options_.writes);
  for (int64_t bytes = options_.bytesMin; bytes <= options_.bytesMax; bytes *= options_.factor) {
    const int64_t enough = std::max(kFewestWrites, kEnoughBytes / bytes);
    runRow(Kind::bandwidth, static_cast<size_t>(bytes), maxBatch_, std::min(options_.writes, enough));
  }
}

int runWorld(World& world, const QueueOptions& options) {
  world.phase("loading the transport");
  const Plugin plugin(options.transport);
  const uint64_t most = plugin.properties().maxBytes;
  const int64_t largest = std::max(options.bytesMax, options.smallBytes);
  if (static_cast<uint64_t>(largest) > most) {
    world.die(exitUsage, "writes of " + std::to_string(largest) + " bytes (-e, --small): " + plugin.table().name +
                             " takes at most " + std::to_string(most));
  }
  const std::string device = plugin.deviceName(options.device);
  std::unique_ptr<QueueReport> report;
  if (world.rank() == 0) report = std::make_unique<QueueReport>(options);
  QueuePerf perf(world, options, plugin, report.get());
  if (report) report->header(world, plugin, device);
  perf.run();
  // No rank closes its endpoint while the other still polls.
  const bool good = world.all(report ? report->footer() : true);
  world.phase("closing");
  return good ? exitGood : exitWrong;
}

int runProgram(int argc, char** argv) {
  World world;
  QueueOptions options;
  try {
    options = parseQueueOptions(argc, argv, world.size());
    if (options.help) {
      if (world.rank() == 0) printf("%s", queueHelpText());
      return exitGood;
    }
  } catch (const UsageError& error) {
    if (world.rank() == 0) fprintf(stderr, "mk_queue_perf: %s\n", error.what());
    return exitUsage;
  }
  world.setDeadline(options.timeoutSeconds);
  try {
    return runWorld(world, options);
  } catch (const TransportError& error) {
    world.die(exitLibrary, error.what());
  } catch (const std::exception& error) {
    world.die(exitSystem, error.what());
  }
}

}  // namespace
}  // namespace mk::perf

int main(int argc, char** argv) {
  int provided = 0;
  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return mk::perf::exitSystem;
  const int code = mk::perf::runProgram(argc, argv);
  MPI_Finalize();
  return code;
}
