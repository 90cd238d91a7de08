// See cuda_lane.h.
#include "cuda_lane.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>

#include "failure.h"

namespace mk::loopback::cuda {
namespace {

using namespace std::chrono_literals;

// Flags wait for payloads of the same pass up to this size: 5 us of a link at 400 GB/s, three times what a post costs.
constexpr uint64_t kGroupBytes = 2 << 20;
// Flags in one copy: few enough to travel as words, never torn.
constexpr uint64_t kFlagsTogether = 64;
// One for each pass that posted something.  Without a free one the next pass's event stands for both.
constexpr size_t kEvents = 64;
constexpr auto kProbeTime = 2s;

}  // namespace

Lane::Lane(const Driver& driver, int peer, uint32_t outstanding)
    : driver_(driver), peer_(peer), slots_(std::bit_ceil(2 * uint64_t{outstanding})) {
  const std::string what = format("CUDA stream for peer %d", peer);
  try {
    driver_.check(driver_.streamCreate(&stream_, kStreamNonBlocking), "cuStreamCreate", what);
    void* words = nullptr;
    driver_.check(driver_.memHostAlloc(&words, slots_ * sizeof(uint64_t), kHostAllocPortable), "cuMemHostAlloc", what);
    words_ = static_cast<uint64_t*>(words);
    events_.reserve(kEvents);
    while (events_.size() < kEvents) {
      Event event = nullptr;
      driver_.check(driver_.eventCreate(&event, kEventDisableTiming), "cuEventCreate", what);
      events_.push_back(event);
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
  for (const Batch& batch : batches_) events_.push_back(batch.event);
  for (const Event event : events_) driver_.eventDestroy(event);
  if (words_ != nullptr) driver_.memFreeHost(words_);
  if (stream_ != nullptr) driver_.streamDestroy(stream_);
}

void Lane::probe(DevicePtr memory) {
  const std::string what = format("reading the CUDA memory of peer %d", peer_);
  if (wordsUsed_ - wordsFree_ == slots_ || events_.empty()) return;  // so much under way that it is proved to work
  uint64_t& word = words_[wordsUsed_ % slots_];                      // not in use
  driver_.check(driver_.memcpyAsync(reinterpret_cast<DevicePtr>(&word), memory, sizeof(word), stream_), "cuMemcpyAsync",
                what);
  driver_.check(driver_.eventRecord(events_.back(), stream_), "cuEventRecord", what);
  const auto deadline = std::chrono::steady_clock::now() + kProbeTime;
  Result result;
  while ((result = driver_.streamQuery(stream_)) == kNotReady) {
    if (std::chrono::steady_clock::now() > deadline)
      fail(mkErrorTimeout, "%s: not done within %lld s", what.c_str(), static_cast<long long>(kProbeTime.count()));
    std::this_thread::sleep_for(20us);
  }
  driver_.check(result, "cuMemcpyAsync", what);
}

// ---- Gathering and posting -----------------------------------------------------------------------------------------

void Lane::copy(const Flight& flight, uint64_t from, uint64_t to) {
  if (!broken_.empty()) return;
  const Copy next = {flight.destination->address(flight.write.remoteOffset + from),
                     reinterpret_cast<DevicePtr>(flight.write.source) + from, to - from, flight.destination.get(),
                     flight.source.get()};
  gathered_ += next.bytes;
  if (!copies_.empty()) {
    Copy& last = copies_.back();
    if (last.destination == next.destination && last.source == next.source && last.to + last.bytes == next.to &&
        last.from + last.bytes == next.from) {
      last.bytes += next.bytes;
      return;
    }
  }
  copies_.push_back(next);
}

bool Lane::notify(const Flight& flight) {
  if (!broken_.empty()) return true;
  if (flight.flagPlace == nullptr) {
    const bool repeated = flight.stage == Flight::Stage::repeat;
    items_.push_back({true, repeated, mkSuccess, flight.write.immediate, flight.order, 0});
  } else {
    if (wordsUsed_ - wordsFree_ == slots_) return false;
    const uint64_t slot = wordsUsed_++ % slots_;
    words_[slot] = flight.write.flagValue;
    const DevicePtr to = flight.flagPlace->address(flight.write.flagOffset);
    if (!flags_.empty() && flags_.back().count < kFlagsTogether && flags_.back().to + 8 * flags_.back().count == to &&
        flags_.back().slot + flags_.back().count == slot)
      ++flags_.back().count;
    else
      flags_.push_back({to, slot, 1});
  }
  if (gathered_ >= kGroupBytes) post();
  return true;
}

void Lane::finish(const Flight& flight, mkResult_t status) {
  items_.push_back({false, false, status, 0, flight.order, flight.write.cookie});
}

// Payloads first: a flag is behind those of the group that are not its own, too.
void Lane::post() {
  for (const Copy& copy : copies_)
    if (const Result result = driver_.memcpyAsync(copy.to, copy.from, copy.bytes, stream_); result != kSuccess)
      return breakWith("cuMemcpyAsync", result);
  for (const Flags& flags : flags_) {
    const auto from = reinterpret_cast<DevicePtr>(words_ + flags.slot);
    if (const Result result = driver_.memcpyAsync(flags.to, from, flags.count * sizeof(uint64_t), stream_);
        result != kSuccess)
      return breakWith("cuMemcpyAsync", result);
  }
  copies_.clear();
  flags_.clear();
  gathered_ = 0;
}

void Lane::flush() {
  if (!broken_.empty()) return;
  post();
  const size_t items = items_.size() - covered_;
  if (!broken_.empty() || (items == 0 && wordsUsed_ == wordsCovered_) || events_.empty()) return;
  const Event event = events_.back();
  if (const Result result = driver_.eventRecord(event, stream_); result != kSuccess)
    return breakWith("cuEventRecord", result);
  events_.pop_back();
  batches_.push_back({event, items, wordsUsed_});
  covered_ += items;
  wordsCovered_ = wordsUsed_;
}

void Lane::breakWith(const char* call, Result result) {
  broken_ = format("copying to the CUDA memory of peer %d: %s", peer_, driver_.describe(call, result).c_str());
  copies_.clear();
  flags_.clear();
  gathered_ = 0;
}

// ---- Telling -------------------------------------------------------------------------------------------------------

void Lane::collect(Sink& sink) {
  while (broken_.empty() && !batches_.empty()) {
    const Batch& batch = batches_.front();
    const Result result = driver_.eventQuery(batch.event);
    if (result == kNotReady) break;
    if (result != kSuccess) {
      breakWith("cuEventQuery", result);
      break;
    }
    ready_ += batch.items;
    wordsFree_ = batch.words;
    events_.push_back(batch.event);
    batches_.pop_front();
  }
  deliver(sink);
  if (!broken_.empty()) giveUp(sink);
}

void Lane::deliver(Sink& sink) {
  for (; ready_ > 0; --ready_, --covered_) {
    const Item item = items_.front();
    if (item.arrival) {
      const Carrier::Outcome outcome = sink.arrive(peer_, item.immediate);
      if (outcome == Carrier::Outcome::full) return;
      if (outcome == Carrier::Outcome::gone && !item.repeated) lost_.push_back(item.order);
    } else {
      const auto lost = std::find(lost_.begin(), lost_.end(), item.order);
      sink.sent(peer_, item.cookie, lost != lost_.end() ? mkErrorRemote : item.status);
      if (lost != lost_.end()) lost_.erase(lost);
    }
    items_.pop_front();
  }
}

// Nothing is known of what has been posted, but once the stream has ended, nothing of it is under way either.
void Lane::giveUp(Sink& sink) {
  if (!told_) sink.failed(peer_, broken_);
  told_ = true;
  if (!idle()) return;
  for (const Item& item : items_)
    if (!item.arrival) sink.sent(peer_, item.cookie, item.status != mkSuccess ? item.status : mkErrorTransport);
  items_.clear();
  ready_ = covered_ = 0;
  for (const Batch& batch : batches_) events_.push_back(batch.event);
  batches_.clear();
}

}  // namespace mk::loopback::cuda
