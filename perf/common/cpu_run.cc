// See cpu_run.h.
#include "cpu_run.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "splits.h"

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

void CpuRun::allocateOutputs(size_t bytes, bool window, GuardedOutput Set::*output) {
  const size_t slot = GuardedOutput::room(bytes), all = slot * kInFlight;
  char* slots = nullptr;
  if (window) {
    session_.require(mkMemAlloc(&windowMemory_, all), "mkMemAlloc");
    session_.require(mkCommWindowRegister(session_.comm(), windowMemory_, all, &window_), "mkCommWindowRegister");
    slots = static_cast<char*>(windowMemory_);
  } else {
    slots = static_cast<char*>(plainMemory_.emplace_back(allocate(all)).get());
  }
  for (Set& set : sets_) {
    (set.*output).memory = slots;
    slots += slot;
  }
}

void CpuRun::allocateBuffers() {
  const Options& o = options_;
  const std::vector<int64_t> scan = o.scan();
  // A rank may have fewer rows of a larger matrix.
  int64_t aMax = 0;
  size_t cMax = 0;
  for (const int64_t m : scan) {
    aMax = std::max(aMax, aElements(m));
    cMax = std::max(cMax, cBytes(m));
  }
  for (Set& set : sets_) {
    set.a = allocate(static_cast<size_t>(aMax) * info(o.in).bytes);
    set.b = allocate(static_cast<size_t>(kOfB() * o.n) * info(o.in).bytes);
    if (o.bias) set.bias = allocate(static_cast<size_t>(o.n) * info(o.out).bytes);
  }
  allocateOutputs(cMax, o.window != 0, &Set::c);
  if (o.beta != 0) oldC_ = allocate(cMax);
  allocateMore(*std::max_element(scan.begin(), scan.end()));
}

Operands CpuRun::operandsOf(const Set& set) const {
  Operands operands;
  operands.a = set.a.get();
  operands.b = set.b.get();
  operands.bias = set.bias.get();
  operands.c = set.c.data();
  operands.window = window_;
  return operands;
}

uint64_t CpuRun::offsetInWindow(const char* at) const {
  return static_cast<uint64_t>(at - static_cast<char*>(windowMemory_));
}

void CpuRun::fill(Set* set, int64_t m, int64_t launch) {
  const Options& o = options_;
  set->launch = launch;
  fillUniform(o.in, set->a.get(), aElements(m), seedOf(Role::a, m, launch, world_.rank()));
  fillUniform(o.in, set->b.get(), kOfB() * o.n, seedOf(Role::b, m, launch, world_.rank()));
  if (o.bias) fillUniform(o.out, set->bias.get(), o.n, seedOf(Role::bias, m, launch, owner()));
  set->c.prepare(cBytes(m));
  if (o.beta != 0) {
    fillUniform(o.out, set->c.data(), cElements(m), seedOf(Role::oldC, m, launch, owner()));
  } else {
    fillNaN(o.out, set->c.data(), cElements(m));
  }
  prepareMore(set, m);
}

void CpuRun::corrupt(const Set& set) const {
  const auto middle = [](const GuardedOutput& output, Type type) {
    const size_t bytes = info(type).bytes;
    return output.data() + output.bytes / bytes / 2 * bytes;
  };
  switch (options_.corrupt) {
    case Corrupt::element:
      // The exponent's highest bit (little endian).
      if (set.c.bytes > 0) middle(set.c, options_.out)[info(options_.out).bytes - 1] ^= 0x40;
      break;
    case Corrupt::rank:
      if (const GuardedOutput* const all = shared(set); all && all->bytes > 0 && world_.rank() == world_.size() - 1)
        middle(*all, all == &set.c ? options_.out : options_.in)[0] ^= 1;
      break;
    case Corrupt::zero:
      memset(set.c.data(), 0, set.c.bytes);
      break;
    case Corrupt::guard:
      set.c.data()[set.c.bytes] ^= 1;
      break;
    case Corrupt::bytes:
    case Corrupt::nothing:
      break;
  }
}

void CpuRun::check(const Set& set, int64_t m, bool last, Row* row) {
  const Options& o = options_;
  if (last) corrupt(set);
  row->outOfBounds += world_.sum(set.c.damaged());
  GemmCase problem;
  problem.m = m;
  problem.n = o.n;
  problem.k = kOfB();
  problem.kTotal = o.k;
  problem.in = o.in;
  problem.out = problem.wire = o.out;
  problem.a = set.a.get();
  problem.b = set.b.get();
  problem.bTransposed = o.transB;
  problem.c = set.c.data();
  if (o.beta != 0) {
    fillUniform(o.out, oldC_.get(), cElements(m), seedOf(Role::oldC, m, set.launch, owner()));
    problem.oldC = oldC_.get();
  }
  problem.bias = set.bias.get();
  problem.alpha = static_cast<double>(o.alpha);
  problem.beta = static_cast<double>(o.beta);
  problem.summed = false;
  describe(set, m, &problem);
  checkGemm(world_, problem, &row->check);
  checkMore(set, m, row);
  row->checked = true;
  row->compared = shared(set) != nullptr;
  row->checkedRows = m;
}

void CpuRun::launchAll(int64_t m, int count, int64_t firstLaunch, bool measured, Row* row) {
  const std::string what = std::string(call()) + ", M " + std::to_string(m);
  for (int done = 0; done < count; done += kInFlight) {
    const int now = std::min(kInFlight, count - done);
    world_.phase(what);
    for (int i = 0; i < now; ++i) fill(&sets_[i], m, firstLaunch + done + i);
    for (int i = 0; i < now; ++i) session_.require(enqueue(i, m), what);
    session_.require(mkCpuStreamSynchronize(stream_), "mkCpuStreamSynchronize");
    session_.requireAsync(what);
    if (!measured) continue;
    for (int i = 0; i < now; ++i) {
      const bool last = done + i == count - 1;
      if (options_.check < 1 || (options_.check == 1 && !last)) continue;
      world_.phase("checking M " + std::to_string(m));
      check(sets_[i], m, last, row);
    }
  }
}

void CpuRun::runRow(int64_t number, Row* row) {
  const int64_t m = row->m, first = number * (options_.warmup + options_.launches);
  session_.reserve(*row);
  launchAll(m, options_.warmup, first, false, row);
  const Session::Counters before = session_.counters();
  launchAll(m, options_.launches, first + options_.warmup, true, row);
  const Session::Counters after = session_.counters();
  session_.compareBytes(info_, traffic(*row), before, after, row);
}

void CpuRun::sweep(const Row& blank) {
  std::vector<Row> rows =
      chooseSplits(world_, options_, session_, info_, blank, [&](Row* row) { choose(blank.m, row); });
  int64_t number = 0;
  for (Row& row : rows) {
    if (!row.skipped.empty()) continue;
    useSplit(session_, info_, *row.split);
    runRow(number++, &row);
  }
  if (report_) report_->sweep(rows);
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
    Row row;
    row.m = m;
    row.n = options_.n;
    row.k = options_.k;
    row.launches = options_.launches;
    world_.phase("preparing M " + std::to_string(m));
    if (options_.sweeps()) {
      sweep(row);
      continue;
    }
    choose(m, &row);
    runRow(0, &row);
    if (report_) report_->row(row);
  }
  disconnect();
}

}  // namespace mk::perf
