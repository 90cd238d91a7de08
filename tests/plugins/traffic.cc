// See traffic.h.
#include "traffic.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace test {
namespace {

constexpr uint64_t kGuardBytes = 64;
constexpr std::byte kGuard{0xa5};       // around the destinations
constexpr std::byte kSurround{0x5a};    // around the sources
constexpr std::byte kAfterwards{0xee};  // over the destinations once all have completed

}  // namespace

Traffic::Traffic(Link& link, const std::vector<uint64_t>& sizes, uint32_t queues, uint64_t seed)
    : link_(link), rank_(link.rank()), seed_(seed), random_(mix(seed, static_cast<uint64_t>(rank_.index))) {
  expect(sizes.size() <= size_t{1} << kSlotBits, "too many writes for the immediates of this test");
  uint64_t at = 8 * sizes.size();
  for (size_t slot = 0; slot < sizes.size(); ++slot) {
    at += kGuardBytes;
    // Source and destination are misaligned differently, so as to meet every combination.
    const uint64_t room = sizes[slot] + 8;
    slots_.push_back(
        {sizes[slot], at + slot * 3 % 8, at + (slot / 8 + slot * 5) % 8, static_cast<uint32_t>(slot) % queues});
    at += room;
  }
  partBytes_ = (at + kGuardBytes + 7) / 8 * 8;
  const size_t all = static_cast<size_t>(partBytes_) * static_cast<size_t>(rank_.count - 1);
  in_ = std::make_unique<SharedMemory>(all);
  out_ = std::make_unique<SharedMemory>(all);
  std::memset(in_->data(), static_cast<int>(kGuard), all);
  std::memset(out_->data(), static_cast<int>(kSurround), all);
  to_.resize(static_cast<size_t>(rank_.count));
  from_.resize(static_cast<size_t>(rank_.count));
  for (int peer = 0; peer < rank_.count; ++peer) {
    if (peer == rank_.index) continue;
    to_[static_cast<size_t>(peer)].done.resize(slots_.size());
    from_[static_cast<size_t>(peer)].seen.resize(slots_.size());
    std::memset(in(peer), 0, 8 * slots_.size());
    for (size_t slot = 0; slot < slots_.size(); ++slot)
      fillPattern(out(peer) + slots_[slot].source, slots_[slot].bytes, patternOf(rank_.index, peer, slot));
  }
  Bytes unused;
  outHandle_ = link_.registerMemory(out_->piece(), &unused);
  remotes_ = link_.share(in_->piece());
}

Write Traffic::writeOf(int peer, size_t slot) const {
  const Slot& place = slots_[slot];
  Write write = {};
  if (place.bytes > 0) {
    write.source = out(peer) + place.source;
    write.localMemory = outHandle_;
    write.remoteMemory = remotes_[static_cast<size_t>(peer)];
    write.remoteOffset = part(peer, rank_.index) + place.destination;
    write.bytes = place.bytes;
  }
  if (link_.ordered()) {
    write.flagMemory = remotes_[static_cast<size_t>(peer)];
    write.flagOffset = part(peer, rank_.index) + 8 * slot;
    write.flagValue = flagOf(rank_.index, peer, slot);
  } else {
    write.immediate = immediateOf(rank_.index, peer, slot);
  }
  write.queue = place.queue;
  write.cookie = static_cast<uint64_t>(peer) << 32 | slot;
  return write;
}

int Traffic::post(int peer, int count) {
  To& to = to_[static_cast<size_t>(peer)];
  std::vector<Write> writes;
  for (size_t slot = to.posted; slot < slots_.size() && static_cast<int>(writes.size()) < count; ++slot)
    writes.push_back(writeOf(peer, slot));
  const int accepted = link_.post(peer, writes.data(), static_cast<int>(writes.size()));
  to.posted += static_cast<size_t>(accepted);
  expect(to.posted - to.completed <= rank_.plugin.properties().maxOutstanding,
         "%zu writes to peer %d outstanding, at most %u were to be", to.posted - to.completed, peer,
         rank_.plugin.properties().maxOutstanding);
  return accepted;
}

void Traffic::send() {
  for (int peer = 0; peer < rank_.count; ++peer)
    if (peer != rank_.index && posted(peer) < slots_.size()) post(peer, 1 + static_cast<int>(random_() % 20));
}

void Traffic::receive() {
  for (const Event& event : link_.poll()) handle(event);
  if (link_.ordered()) lookAtFlags();
}

void Traffic::handle(const Event& event) {
  expect(event.peer >= 0 && event.peer < rank_.count && event.peer != rank_.index, "event of peer %d", event.peer);
  if (event.kind == MK_EVENT_SENT) return handleSent(event);
  if (event.kind == MK_EVENT_ARRIVED) return handleArrived(event);
  expect(false, "event of kind %u, status %d: %s", event.kind, event.status, link_.table().lastError());
}

void Traffic::handleSent(const Event& event) {
  const size_t slot = event.cookie & 0xffffffffu;
  To& to = to_[static_cast<size_t>(event.peer)];
  expect(event.cookie >> 32 == static_cast<uint64_t>(event.peer) && slot < to.posted,
         "completion with cookie %llx of peer %d, which was not posted", static_cast<unsigned long long>(event.cookie),
         event.peer);
  expect(!to.done[slot], "write %zu to peer %d completed twice", slot, event.peer);
  expect(event.status == mkSuccess, "write %zu to peer %d completed with status %d", slot, event.peer, event.status);
  to.done[slot] = true;
  ++to.completed;
  // From here on the source is ours again.
  std::memset(out(event.peer) + slots_[slot].source, 0, slots_[slot].bytes);
}

void Traffic::handleArrived(const Event& event) {
  expect(!link_.ordered(), "an arrival under the ordered contract");
  const size_t slot = event.immediate & ((1u << kSlotBits) - 1);
  expect(slot < slots_.size() && event.immediate == immediateOf(event.peer, rank_.index, slot),
         "notification %08x of peer %d was never sent", event.immediate, event.peer);
  notified(event.peer, slot);
}

void Traffic::lookAtFlags() {
  for (int peer = 0; peer < rank_.count; ++peer) {
    From& from = from_[static_cast<size_t>(peer)];
    while (from.firstOpen < from.seen.size() && from.seen[from.firstOpen]) ++from.firstOpen;
    const size_t end = std::min(from.seen.size(), from.firstOpen + 300);
    for (size_t slot = from.firstOpen; slot < end; ++slot) {
      if (from.seen[slot]) continue;
      const uint64_t value = loadFlag(in(peer) + 8 * slot);
      if (value == 0) continue;
      expect(value == flagOf(peer, rank_.index, slot), "flag of write %zu of peer %d has a value that was never sent",
             slot, peer);
      notified(peer, slot);
    }
  }
}

void Traffic::notified(int peer, size_t slot) {
  checkPayload(peer, slot, "at its notification");
  From& from = from_[static_cast<size_t>(peer)];
  if (from.seen[slot]) return;
  from.seen[slot] = true;
  ++from.received;
}

void Traffic::checkPayload(int peer, size_t slot, const char* when) const {
  const Slot& place = slots_[slot];
  const int64_t at = findDifference(in(peer) + place.destination, place.bytes, patternOf(peer, rank_.index, slot));
  expect(at < 0, "payload of write %zu of peer %d (%llu bytes) is wrong from byte %lld on %s", slot, peer,
         static_cast<unsigned long long>(place.bytes), static_cast<long long>(at), when);
}

void Traffic::checkGuards(int peer) const {
  const std::byte* base = in(peer);
  uint64_t from = 8 * slots_.size();
  for (size_t slot = 0; slot <= slots_.size(); ++slot) {
    const uint64_t to = slot < slots_.size() ? slots_[slot].destination : partBytes_;
    const int64_t at = findOther(base + from, to - from, kGuard);
    expect(at < 0, "guard before write %zu of peer %d is overwritten at byte %lld", slot, peer,
           static_cast<long long>(at));
    if (slot < slots_.size()) from = to + slots_[slot].bytes;
  }
}

bool Traffic::allSent() const {
  return std::all_of(to_.begin(), to_.end(), [](const To& to) { return to.completed == to.done.size(); });
}

bool Traffic::allReceived() const {
  return std::all_of(from_.begin(), from_.end(), [](const From& from) { return from.received == from.seen.size(); });
}

std::string Traffic::missing() const {
  std::string text = "lost:";
  for (int peer = 0; peer < rank_.count; ++peer) {
    if (peer == rank_.index) continue;
    text += " peer " + std::to_string(peer) + ": " + std::to_string(completed(peer)) + " completions and " +
            std::to_string(received(peer)) + " notifications of " + std::to_string(slots_.size()) + ";";
  }
  return text;
}

void Traffic::run() {
  auto deadline = rank_.deadline();
  for (size_t before = 0; !allSent() || !allReceived();) {
    size_t now = 0;
    for (int peer = 0; peer < rank_.count; ++peer) now += completed(peer) + received(peer);
    if (now != before) deadline = rank_.deadline();
    before = now;
    expect(Clock::now() < deadline, "%s", missing().c_str());
    send();
    receive();
  }
  checkSilence();
}

// Once all ranks have seen all completions, nothing may be written any more, and nothing announced.
void Traffic::checkSilence() {
  using namespace std::chrono_literals;
  rank_.barrier();
  for (const Event& event : link_.pollFor(20ms)) handle(event);  // repetitions that are in the arrival queue already
  for (int peer = 0; peer < rank_.count; ++peer) {
    if (peer == rank_.index) continue;
    for (size_t slot = 0; slot < slots_.size(); ++slot) checkPayload(peer, slot, "after completion");
    checkGuards(peer);
    for (size_t slot = 0; link_.ordered() && slot < slots_.size(); ++slot) storeFlag(in(peer) + 8 * slot, 0);
    for (const Slot& place : slots_)
      std::memset(in(peer) + place.destination, static_cast<int>(kAfterwards), place.bytes);
  }
  for (const Event& event : link_.pollFor(20ms))
    expect(false, "event of kind %u of peer %d after completion", event.kind, event.peer);
  for (int peer = 0; peer < rank_.count; ++peer) {
    if (peer == rank_.index) continue;
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      const std::byte* base = in(peer);
      expect(findOther(base + slots_[slot].destination, slots_[slot].bytes, kAfterwards) < 0,
             "destination of write %zu of peer %d is written after completion", slot, peer);
      expect(!link_.ordered() || findOther(base + 8 * slot, 8, std::byte{0}) < 0,
             "flag of write %zu of peer %d is written after completion", slot, peer);
    }
  }
  rank_.barrier();
}

}  // namespace test
