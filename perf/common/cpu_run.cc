// See cpu_run.h.
#include "cpu_run.h"

#include <algorithm>
#include <cstring>

namespace mk::perf {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr int kGuardByte = 0x5c;

bool spoilt(const char* begin, const char* end) {
  return std::any_of(begin, end, [](char c) { return c != kGuardByte; });
}

}  // namespace

char* GuardedOutput::data() const { return memory + kGuardBytes; }

size_t GuardedOutput::room(size_t bytes) { return (bytes + 63) / 64 * 64 + 2 * kGuardBytes; }

void GuardedOutput::prepare(size_t size) {
  bytes = size;
  memset(memory, kGuardByte, room(size));
}

int64_t GuardedOutput::damaged() const { return spoilt(memory, data()) + spoilt(data() + bytes, memory + room(bytes)); }

char* CpuRun::makeWindow(size_t bytes) {
  session_.require(mkMemAlloc(&windowMemory_, bytes), "mkMemAlloc");
  session_.require(mkCommWindowRegister(session_.comm(), windowMemory_, bytes, &window_), "mkCommWindowRegister");
  return static_cast<char*>(windowMemory_);
}

uint64_t CpuRun::offsetInWindow(const char* at) const {
  return static_cast<uint64_t>(at - static_cast<char*>(windowMemory_));
}

void CpuRun::launchAll(int64_t m, int count, int64_t firstLaunch, bool measured, Row* row) {
  const std::string what = std::string(call()) + ", M " + std::to_string(m);
  for (int done = 0; done < count; done += kInFlight) {
    const int now = std::min(kInFlight, count - done);
    world_.phase(what);
    for (int i = 0; i < now; ++i) fill(i, m, firstLaunch + done + i);
    for (int i = 0; i < now; ++i) session_.require(enqueue(i, m), what);
    session_.require(mkCpuStreamSynchronize(stream_), "mkCpuStreamSynchronize");
    session_.requireAsync(what);
    if (!measured) continue;
    for (int i = 0; i < now; ++i) {
      const bool last = done + i == count - 1;
      if (options_.check < 1 || (options_.check == 1 && !last)) continue;
      world_.phase("checking M " + std::to_string(m));
      check(i, m, last, row);
      row->checked = true;
    }
  }
}

Row CpuRun::runRow(int64_t m) {
  Row row;
  row.m = m;
  row.n = options_.n;
  row.k = options_.k;
  row.launches = options_.launches;
  world_.phase("preparing M " + std::to_string(m));
  choose(m, &row);
  session_.reserve(row);

  launchAll(m, options_.warmup, 0, false, &row);
  const Session::Counters before = session_.counters();
  launchAll(m, options_.launches, options_.warmup, true, &row);
  const Session::Counters after = session_.counters();
  session_.compareBytes(info_, traffic(row), before, after, &row);
  return row;
}

void CpuRun::disconnect() {
  session_.finalize();
  if (window_) session_.require(mkCommWindowDeregister(session_.comm(), window_), "mkCommWindowDeregister");
  session_.require(mkCpuStreamDestroy(stream_), "mkCpuStreamDestroy");
  session_.destroy();
  session_.require(mkMemFree(windowMemory_), "mkMemFree");
}

void CpuRun::run() {
  session_.require(mkCpuStreamCreate(&stream_), "mkCpuStreamCreate");
  world_.phase("allocating buffers");
  allocateBuffers();
  for (const int64_t m : options_.scan()) {
    const Row row = runRow(m);
    if (report_) report_->row(row);
  }
  disconnect();
}

}  // namespace mk::perf
