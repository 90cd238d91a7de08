// See cuda_lane.h.
#include "cuda_lane.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "common/failure.h"

namespace mk::plugin::loopback::cuda {
namespace {

using namespace std::chrono_literals;

// Flags wait for payloads of the same pass up to this size: 5 us of a link at 400 GB/s, twice what a post costs.
constexpr uint64_t kGroupBytes = 2 << 20;
constexpr size_t kStoresTogether = 128;  // the driver takes up to 256
// Writes in a row that take the same path: enough for contiguous ones to travel as one copy.
constexpr uint64_t kInARow = 32;
constexpr auto kAskEvery = 5ms;
constexpr auto kProbeTime = 2s;

MemOp storeOf(DevicePtr to, uint64_t value) { return {kWriteValue64, to, value, 0, 0, 0}; }

}  // namespace

Lane::Lane(const Driver& driver, int peer) : driver_(driver), peer_(peer) {
  const std::string what = format("CUDA stream for peer %d", peer);
  try {
    for (Path& path : paths_) {
      driver_.check(driver_.streamCreate(&path.stream, kStreamNonBlocking), "cuStreamCreate", what);
      void* words = nullptr;
      driver_.check(driver_.memHostAlloc(&words, 2 * sizeof(uint64_t), kHostAllocPortable), "cuMemHostAlloc", what);
      path.passed = static_cast<uint64_t*>(words);
      path.passed[0] = path.passed[1] = 0;
    }
  } catch (...) {
    release();
    throw;
  }
}

Lane::~Lane() {
  if (!abandoned_) release();
}

void Lane::release() {
  for (Path& path : paths_) {
    if (path.passed != nullptr) driver_.memFreeHost(path.passed);
    if (path.stream != nullptr) driver_.streamDestroy(path.stream);
  }
}

bool Lane::idle() const {
  return std::all_of(paths_.begin(), paths_.end(),
                     [&](const Path& path) { return driver_.streamQuery(path.stream) != kNotReady; });
}

void Lane::probe(DevicePtr memory) {
  const std::string what = format("reading the CUDA memory of peer %d", peer_);
  if (!idle()) return;  // so much under way that it is proved to work
  for (const Path& path : paths_) {
    driver_.check(
        driver_.memcpyAsync(reinterpret_cast<DevicePtr>(path.passed + 1), memory, sizeof(uint64_t), path.stream),
        "cuMemcpyAsync", what);
    MemOp again = storeOf(reinterpret_cast<DevicePtr>(path.passed), path.posted);
    driver_.check(driver_.streamBatchMemOp(path.stream, 1, &again, 0), "cuStreamBatchMemOp", what);
    const auto deadline = std::chrono::steady_clock::now() + kProbeTime;
    Result result;
    while ((result = driver_.streamQuery(path.stream)) == kNotReady) {
      if (std::chrono::steady_clock::now() > deadline)
        fail(mkErrorTimeout, "%s: not done within %lld s", what.c_str(), static_cast<long long>(kProbeTime.count()));
      std::this_thread::sleep_for(20us);
    }
    driver_.check(result, "cuMemcpyAsync", what);
  }
}

// ---- Gathering and posting -----------------------------------------------------------------------------------------

Lane::Path& Lane::pathOf(const Flight& flight) { return paths_[(flight.order - 1) / kInARow % paths_.size()]; }

void Lane::copy(const Flight& flight, uint64_t from, uint64_t to) {
  if (!broken_.empty()) return;
  Path& path = pathOf(flight);
  const Copy next = {flight.destination->address(flight.write.remoteOffset + from),
                     reinterpret_cast<DevicePtr>(flight.write.source) + from, to - from, flight.destination.get(),
                     flight.source.get()};
  path.gathered += next.bytes;
  if (!path.copies.empty()) {
    Copy& last = path.copies.back();
    if (last.destination == next.destination && last.source == next.source && last.to + last.bytes == next.to &&
        last.from + last.bytes == next.from) {
      last.bytes += next.bytes;
      return;
    }
  }
  path.copies.push_back(next);
}

void Lane::notify(const Flight& flight) {
  if (!broken_.empty()) return;
  Path& path = pathOf(flight);
  if (flight.flagPlace == nullptr) {
    const bool repeated = flight.stage == Flight::Stage::repeat;
    path.items.push_back({true, repeated, mkSuccess, flight.write.immediate, flight.order, 0});
  } else {
    path.stores.push_back(storeOf(flight.flagPlace->address(flight.write.flagOffset), flight.write.flagValue));
  }
  if (path.gathered >= kGroupBytes || path.stores.size() >= kStoresTogether) post(path);
}

void Lane::finish(const Flight& flight, mkResult_t status) {
  pathOf(flight).items.push_back({false, false, status, 0, flight.order, flight.write.cookie});
}

// Payloads first: a flag is behind those of the group that are not its own, too.
void Lane::post(Path& path) {
  for (const Copy& copy : path.copies)
    if (const Result result = driver_.memcpyAsync(copy.to, copy.from, copy.bytes, path.stream); result != kSuccess)
      return breakWith("cuMemcpyAsync", result);
  if (!path.stores.empty()) {
    const auto count = static_cast<unsigned>(path.stores.size());
    if (const Result result = driver_.streamBatchMemOp(path.stream, count, path.stores.data(), 0); result != kSuccess)
      return breakWith("cuStreamBatchMemOp", result);
  }
  path.copies.clear();
  path.stores.clear();
  path.gathered = 0;
}

void Lane::flush(Path& path) {
  if (!broken_.empty()) return;
  const size_t items = path.items.size() - path.covered;
  if (items > 0) path.stores.push_back(storeOf(reinterpret_cast<DevicePtr>(path.passed), path.posted + 1));
  post(path);
  if (!broken_.empty() || items == 0) return;
  path.batches.push_back({++path.posted, items});
  path.covered += items;
}
void Lane::flush() {
  for (Path& path : paths_) flush(path);
}

void Lane::breakWith(const char* call, Result result) {
  broken_ = format("copying to the CUDA memory of peer %d: %s", peer_, driver_.describe(call, result).c_str());
  for (Path& path : paths_) {
    path.copies.clear();
    path.stores.clear();
    path.gathered = 0;
  }
}

// ---- Telling -------------------------------------------------------------------------------------------------------

void Lane::collect(Path& path, Sink& sink) {
  const uint64_t passed = std::atomic_ref(*path.passed).load(std::memory_order_acquire);
  for (; !path.batches.empty() && path.batches.front().number <= passed; path.batches.pop_front())
    path.ready += path.batches.front().items;
  deliver(path, sink);
}
void Lane::collect(Sink& sink) {
  for (Path& path : paths_) collect(path, sink);
  if (broken_.empty()) askForFault();
  if (!broken_.empty()) giveUp(sink);
}

// A stream that has come to an error stores nothing any more.
void Lane::askForFault() {
  const auto waits = [](const Path& path) { return !path.batches.empty(); };
  if (std::none_of(paths_.begin(), paths_.end(), waits)) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - askedAt_ < kAskEvery) return;
  askedAt_ = now;
  for (const Path& path : paths_) {
    const Result result = driver_.streamQuery(path.stream);
    if (result != kSuccess && result != kNotReady) return breakWith("cuStreamQuery", result);
  }
}

void Lane::deliver(Path& path, Sink& sink) {
  for (; path.ready > 0; --path.ready, --path.covered) {
    const Item item = path.items.front();
    if (item.arrival) {
      const Carrier::Outcome outcome = sink.arrive(peer_, item.immediate);
      if (outcome == Carrier::Outcome::full) return;
      if (outcome == Carrier::Outcome::gone && !item.repeated) lost_.push_back(item.order);
    } else {
      const auto lost = std::find(lost_.begin(), lost_.end(), item.order);
      sink.sent(peer_, item.cookie, lost != lost_.end() ? mkErrorRemote : item.status);
      if (lost != lost_.end()) lost_.erase(lost);
    }
    path.items.pop_front();
  }
}

// Nothing is known of what has been posted, but once the streams have ended, nothing of it is under way either.
void Lane::giveUp(Sink& sink) {
  if (!told_) sink.failed(peer_, broken_);
  told_ = true;
  if (!idle()) return;
  for (Path& path : paths_) {
    for (const Item& item : path.items)
      if (!item.arrival) sink.sent(peer_, item.cookie, item.status != mkSuccess ? item.status : mkErrorTransport);
    path.items.clear();
    path.batches.clear();
    path.ready = path.covered = 0;
  }
}

}  // namespace mk::plugin::loopback::cuda
