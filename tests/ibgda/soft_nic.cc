#include "ibgda/soft_nic.h"

#include <time.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace test {

namespace {

// Fields stand with their most significant byte first.
uint32_t be32(uint64_t v) { return __builtin_bswap32(static_cast<uint32_t>(v)); }
uint64_t be64(uint64_t v) { return __builtin_bswap64(v); }

uint64_t load(const uint64_t* p) { return std::atomic_ref<const uint64_t>(*p).load(std::memory_order_relaxed); }

constexpr uint32_t kWrite = 0x08, kWriteImmediate = 0x09;
constexpr uint8_t kUpdate = 0x08;  // of the flags: a completion is wanted
constexpr uint32_t kInline = 0x80000000u;
constexpr uint64_t kMaxMessage = uint64_t{1} << 30;
constexpr uint64_t kScribble = 0xdeadbeefdeadbeefull;
enum Syndrome : uint8_t {
  ok = 0,
  queueOperation = 0x02,
  localProtection = 0x04,
  flushed = 0x05,
  remoteAccess = 0x13,
  noAnswer = 0x15
};
enum CqeOpcode : uint64_t { requester = 0, responderImmediate = 1, requesterError = 13 };

}  // namespace

struct SoftNic::Entry {
  uint64_t index = 0;
  uint32_t opcode = 0, segments = 0, blocks = 1;
  uint8_t flags = 0;
  uint32_t immediate = 0;  // as it stands
  uint64_t remoteAddress = 0;
  uint32_t remoteKey = 0;
  struct Piece {
    uint64_t address;
    uint32_t key, bytes;
  };
  std::vector<Piece> pieces;
  std::vector<char> inlined;
  bool isInline = false;
};

SoftNic::SoftNic(Idle idle, uint32_t card)
    : idle_(idle),
      card_(card),
      entry_(std::make_unique<Entry>()),
      wire_(card == 0 ? nullptr
                      : std::make_unique<Wire>(card,
                                               [this](const Wire::Packet& packet, const char* bytes) {
                                                 const std::lock_guard lock(mutex_);
                                                 return deliver(packet, bytes);
                                               })),
      thread_([this] { loop(); }) {}

SoftNic::~SoftNic() {
  stop_.store(true);
  thread_.join();
}

uint32_t SoftNic::createCompletions(void* cqes, uint32_t count, const uint32_t* record) {
  const std::lock_guard lock(mutex_);
  completions_[nextCompletions_] = {static_cast<uint64_t*>(cqes), count, record};
  return nextCompletions_++;
}

void SoftNic::destroyCompletions(uint32_t handle) {
  const std::lock_guard lock(mutex_);
  completions_.erase(handle);
}

uint32_t SoftNic::createPair(const Pair& pair) {
  const std::lock_guard lock(mutex_);
  // Numbers that are not small, so that a byte too few or too many shows.
  const uint32_t number = 0x10000u * (nextPair_ % 0xff) + nextPair_;
  ++nextPair_;
  PairState& p = pairs_[number];
  p.number = number;
  p.pair = pair;
  p.control.resize(pair.entryCount);
  p.rung = load(pair.doorbell);
  return number;
}

void SoftNic::connectPair(uint32_t number, uint32_t remote, uint32_t card) {
  const std::lock_guard lock(mutex_);
  PairState& p = pairs_.at(number);
  p.remote = remote;
  p.remoteCard = card == card_ ? 0 : card;
}

void SoftNic::breakPair(uint32_t number) {
  const std::lock_guard lock(mutex_);
  pairs_.at(number).remote = 0;
}

void SoftNic::stopPair(uint32_t number) {
  std::unique_lock lock(mutex_);
  answered_.wait(lock, [&] { return asking_ != number; });
  pairs_.at(number).broken = true;
}

void SoftNic::destroyPair(uint32_t number) {
  std::unique_lock lock(mutex_);
  answered_.wait(lock, [&] { return asking_ != number; });
  pairs_.erase(number);
}

uint32_t SoftNic::addMemory(void* address, uint64_t bytes, bool remoteWrite, uint32_t domain, FarMemory* far) {
  const std::lock_guard lock(mutex_);
  const uint32_t key = nextKey_++ << 8 | 0x5a;
  memories_[key] = {static_cast<char*>(address), bytes, remoteWrite, domain, far};
  return key;
}

bool SoftNic::removeMemory(uint32_t key) {
  const std::lock_guard lock(mutex_);
  return memories_.erase(key) != 0;
}

SoftNic::Counters SoftNic::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

std::vector<std::string> SoftNic::complaints() const {
  const std::lock_guard lock(mutex_);
  return complaints_;
}

void SoftNic::complain(const PairState& p, const char* fmt, ...) {
  char text[256];
  va_list list;
  va_start(list, fmt);
  std::vsnprintf(text, sizeof(text), fmt, list);
  va_end(list);
  complain("pair " + std::to_string(p.number) + ": " + text);
}

void SoftNic::complain(const std::string& text) {
  if (complaints_.size() < 100) complaints_.push_back(text);
  if (heard_) heard_(text);
}

void SoftNic::loop() {
  uint32_t quiet = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (!paused_.load(std::memory_order_relaxed) && step()) {
      quiet = 0;
    } else if (idle_ == Idle::sleep) {
      if (++quiet < 100) {
        std::this_thread::yield();
      } else {
        const timespec pause{0, 20'000};
        nanosleep(&pause, nullptr);
      }
    }
  }
}

bool SoftNic::step() {
  const std::lock_guard lock(mutex_);
  bool any = false;
  for (auto& [number, p] : pairs_) any |= serve(p);
  return any;
}

// ---- Doorbell ------------------------------------------------------------------------------------------------------

// True: rung since last time.  What it says is compared with the record, which must not be behind it.
bool SoftNic::hearDoorbell(PairState& p) {
  const uint64_t rung = std::atomic_ref<uint64_t>(*p.pair.doorbell).load(std::memory_order_acquire);
  if (rung == p.rung) return false;
  p.rung = rung;
  ++counters_.doorbells;
  const uint32_t low = be32(rung), high = be32(rung >> 32);
  const auto end = static_cast<uint16_t>((low >> 8) + 1);
  if (low >> 24 != 0) complain(p, "doorbell %016lx: modifier %u", rung, low >> 24);
  if (high >> 8 != p.number) complain(p, "doorbell %016lx: names queue pair %u", rung, high >> 8);
  if (p.everRung && static_cast<int16_t>(end - p.rungEnd) <= 0)
    complain(p, "doorbell goes back from entry %u to %u", p.rungEnd - 1u, end - 1u);
  p.rungEnd = end;
  p.everRung = true;
  return true;
}

bool SoftNic::serve(PairState& p) {
  const bool rung = hearDoorbell(p);
  if (!rung && !p.waitsForReceive) return false;
  const uint32_t record = be32(std::atomic_ref<const uint32_t>(p.pair.records[1]).load(std::memory_order_acquire));
  if (record > 0xffff) complain(p, "send counter %x has more than 16 bits", record);
  const auto behind = static_cast<uint16_t>(record - p.rungEnd);
  if (behind > p.pair.entryCount)
    complain(p, "the record (%u) was not written before the doorbell (%u)", record, p.rungEnd);
  const auto ahead = static_cast<uint16_t>(record - p.fetched);
  if (ahead > p.pair.entryCount) {
    complain(p, "%u entries at once in a queue of %u", ahead, p.pair.entryCount);
    return true;
  }
  const uint64_t end = p.fetched + ahead;
  bool any = rung;
  p.waitsForReceive = false;
  while (p.fetched < end) {
    if (execute(p) == Outcome::wait) {
      p.waitsForReceive = true;
      break;
    }
    any = true;
  }
  if (p.waitsForReceive || !rung) return any;
  const uint64_t named = p.control[(p.rungEnd - 1u) & (p.pair.entryCount - 1)];
  if (named != p.rung && p.fetched == end)
    complain(p, "doorbell %016lx is not the beginning of the entry it names, %016lx", p.rung, named);
  return any;
}

// ---- Entries -------------------------------------------------------------------------------------------------------

// False: not an entry a card could carry out.
bool SoftNic::decode(PairState& p, Entry& e) {
  const auto* base = static_cast<const uint64_t*>(p.pair.entries);
  // Segment s of the entry, two words; entries go on at the beginning of the queue.
  const auto segment = [&](uint32_t s, uint64_t(&words)[2]) {
    const uint64_t place = (e.index + s / 4) & (p.pair.entryCount - 1);
    words[0] = load(base + place * 8 + s % 4 * 2);
    words[1] = load(base + place * 8 + s % 4 * 2 + 1);
  };
  uint64_t w[2];
  segment(0, w);
  p.control[e.index & (p.pair.entryCount - 1)] = w[0];
  const uint32_t low = be32(w[0]), high = be32(w[0] >> 32);
  e.opcode = low & 0xff;
  e.segments = high & 0xff;
  e.blocks = (e.segments + 3) / 4;
  e.flags = static_cast<uint8_t>(w[1] >> 24);
  e.immediate = static_cast<uint32_t>(w[1] >> 32);
  const auto wrong = [&](const char* what, uint64_t value) {
    complain(p, "entry %lu: %s %lx", e.index, what, value);
    e.blocks = 1;
    return false;
  };
  if (e.opcode != kWrite && e.opcode != kWriteImmediate) return wrong("operation", e.opcode);
  if (low >> 24 != 0) return wrong("modifier", low >> 24);
  if ((low >> 8 & 0xffff) != (e.index & 0xffff)) return wrong("says its index is", low >> 8 & 0xffff);
  if (high >> 8 != p.number) return wrong("names queue pair", high >> 8);
  if (e.segments < 2 || e.segments > 16) return wrong("number of segments", e.segments);
  if ((w[1] & 0xffffff) != 0) return wrong("signature or stream", w[1] & 0xffffff);
  if ((e.flags & ~kUpdate) != 0) return wrong("flags", e.flags);
  if (e.opcode == kWrite && e.immediate != 0) return wrong("immediate without being asked for:", e.immediate);
  segment(1, w);
  e.remoteAddress = be64(w[0]);
  e.remoteKey = be32(w[1]);
  if (w[1] >> 32 != 0) return wrong("reserved field behind the remote key", w[1] >> 32);
  for (uint32_t s = 2; s < e.segments;) {
    segment(s, w);
    const uint32_t count = be32(w[0]);
    if ((count & kInline) != 0) {
      const uint32_t bytes = count & ~kInline;
      if (bytes == 0 || bytes > p.pair.maxInline) return wrong("inline bytes", bytes);
      if ((4 + bytes + 15) / 16 != e.segments - s) return wrong("segments do not fit the inline bytes", bytes);
      char raw[16 * 16];
      for (uint32_t i = s; i < e.segments; ++i) {
        segment(i, w);
        std::memcpy(raw + (i - s) * 16, w, 16);
      }
      e.inlined.assign(raw + 4, raw + 4 + bytes);
      e.isInline = true;
      break;
    }
    if (count == 0) return wrong("data segment without length, key", be32(w[0] >> 32));
    e.pieces.push_back({be64(w[1]), be32(w[0] >> 32), count});
    ++s;
  }
  return true;
}

const SoftNic::Memory* SoftNic::find(uint32_t key, uint64_t address, uint64_t bytes, uint32_t domain) const {
  const auto found = memories_.find(key);
  if (found == memories_.end() || found->second.domain != domain) return nullptr;
  const Memory& m = found->second;
  const auto begin = reinterpret_cast<uint64_t>(m.address);
  if (address < begin || address - begin > m.bytes || bytes > m.bytes - (address - begin)) return nullptr;
  return &m;
}

// What is to be written: inline bytes, or where they lie; nothing is copied twice.
uint8_t SoftNic::gather(const PairState& p, const Entry& e, std::vector<char>& bytes) {
  if (e.isInline) {
    bytes = e.inlined;
    return ok;
  }
  uint64_t total = 0;
  for (const Entry::Piece& piece : e.pieces) {
    if (find(piece.key, piece.address, piece.bytes, p.pair.domain) == nullptr) return localProtection;
    total += piece.bytes;
  }
  if (total > kMaxMessage) return queueOperation;
  bytes.resize(total);
  uint64_t at = 0;
  for (const Entry::Piece& piece : e.pieces) {
    const Memory* const m = find(piece.key, piece.address, piece.bytes, p.pair.domain);
    if (m->far != nullptr) {
      m->far->read(bytes.data() + at, piece.address, piece.bytes);
    } else {
      std::memcpy(bytes.data() + at, reinterpret_cast<const char*>(piece.address), piece.bytes);
    }
    at += piece.bytes;
  }
  return ok;
}

// Null: this card has no such pair, or it is connected to another one.
const SoftNic::PairState* SoftNic::receiverOf(const Wire::Packet& packet) const {
  const auto found = pairs_.find(packet.to);
  const bool connected =
      found != pairs_.end() && found->second.remote == packet.from && found->second.remoteCard == packet.fromCard;
  return connected ? &found->second : nullptr;
}

// Carries out a write to this card's memory.
uint8_t SoftNic::deliver(const Wire::Packet& packet, const char* bytes) {
  const PairState* const receiver = receiverOf(packet);
  if (receiver == nullptr) return noAnswer;
  if (packet.bytes == 0) return ok;
  const Memory* const m = find(packet.key, packet.address, packet.bytes, receiver->pair.domain);
  if (m == nullptr || !m->remoteWrite) return remoteAccess;
  if (packet.bytes == 8 && packet.address % 8 == 0) {
    // May be a flag: everything before it is visible to whoever sees it.
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    if (m->far != nullptr) {
      m->far->store(packet.address, word);
    } else {
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(packet.address)).store(word, std::memory_order_release);
    }
  } else if (m->far != nullptr) {
    m->far->write(packet.address, bytes, packet.bytes);
  } else {
    std::memcpy(reinterpret_cast<char*>(packet.address), bytes, packet.bytes);
  }
  return ok;
}

uint8_t SoftNic::scatter(const PairState& p, const Entry& e, const std::vector<char>& bytes) {
  if (p.remote == 0) return noAnswer;
  Wire::Packet packet = {0, p.number, p.remote, e.remoteKey, e.remoteAddress, bytes.size()};
  if (p.remoteCard == 0) return deliver(packet, bytes.data());
  if (e.opcode == kWriteImmediate) {
    complain(p, "entry %lu: this card carries no immediates to others", e.index);
    return queueOperation;
  }
  packet.fromCard = card_;
  const uint32_t card = p.remoteCard;
  asking_ = p.number;
  mutex_.unlock();  // the other card may be asking this one
  uint8_t syndrome = noAnswer;
  const bool answered = wire_->send(card, packet, bytes.data(), &syndrome);
  mutex_.lock();
  asking_ = 0;
  answered_.notify_all();
  return answered ? syndrome : uint8_t{noAnswer};
}

SoftNic::Outcome SoftNic::execute(PairState& p) {
  Entry& e = *entry_;
  e.index = p.fetched;
  e.pieces.clear();
  e.isInline = false;
  const bool sound = decode(p, e);
  const auto receiver = p.remoteCard == 0 ? pairs_.find(p.remote) : pairs_.end();
  if (sound && !p.broken && e.opcode == kWriteImmediate && receiver != pairs_.end()) {
    // It uses up a receive entry; without one a real card asks again and again.
    const PairState& r = receiver->second;
    const uint32_t offered =
        be32(std::atomic_ref<const uint32_t>(r.pair.records[0]).load(std::memory_order_acquire)) & 0xffff;
    if (static_cast<uint16_t>(offered - r.received) == 0) return Outcome::wait;
  }
  uint8_t syndrome = p.broken ? flushed : sound ? ok : queueOperation;
  std::vector<char>& bytes = bytes_;
  bytes.clear();
  if (syndrome == ok) syndrome = gather(p, e, bytes);
  if (syndrome == ok) syndrome = scatter(p, e, bytes);
  ++counters_.entries;
  if (syndrome == ok) {
    counters_.bytes += bytes.size();
    (e.isInline ? counters_.inlines : counters_.payloads) += 1;
    if (e.opcode == kWriteImmediate) arrive(receiver->second, e, bytes.size());
  } else {
    p.broken = true;
  }
  // Whoever uses these places again has to write them anew.
  auto* base = static_cast<uint64_t*>(p.pair.entries);
  for (uint32_t b = 0; b < e.blocks; ++b)
    for (uint32_t i = 0; i < 8; ++i)
      std::atomic_ref<uint64_t>(base[((e.index + b) & (p.pair.entryCount - 1)) * 8 + i])
          .store(kScribble, std::memory_order_relaxed);
  p.fetched += e.blocks;
  if (syndrome != ok || (e.flags & kUpdate) != 0) complete(p, e, syndrome);
  return Outcome::done;
}

// ---- Completions ---------------------------------------------------------------------------------------------------

void SoftNic::putCqe(uint32_t handle, uint64_t (&words)[8]) {
  const auto found = completions_.find(handle);
  if (found == completions_.end()) return;
  Completions& c = found->second;
  const uint32_t consumed = be32(std::atomic_ref<const uint32_t>(*c.record).load(std::memory_order_acquire));
  if ((static_cast<uint32_t>(c.produced - consumed) & 0xffffff) >= c.count) {
    complain("completion queue " + std::to_string(handle) + " overruns");
    return;
  }
  uint64_t* const cqe = c.cqes + c.produced % c.count * 8;
  const uint64_t owner = c.produced / c.count & 1;
  ++c.produced;
  for (int i = 0; i < 7; ++i) std::atomic_ref<uint64_t>(cqe[i]).store(words[i], std::memory_order_relaxed);
  std::atomic_ref<uint64_t>(cqe[7]).store(words[7] | owner << 56, std::memory_order_release);
}

void SoftNic::complete(PairState& p, const Entry& e, uint8_t syndrome) {
  uint64_t words[8] = {};
  const auto counter = static_cast<uint64_t>(__builtin_bswap16(static_cast<uint16_t>(e.index)));
  const uint64_t opcode = syndrome == ok ? requester : requesterError;
  words[7] = be32(e.opcode << 24 | p.number) | counter << 32 | opcode << 60;
  if (syndrome != ok) words[6] = uint64_t{syndrome} << 56;
  ++(syndrome == ok ? counters_.completions : counters_.errors);
  putCqe(p.pair.sendCompletions, words);
}

void SoftNic::arrive(PairState& receiver, const Entry& e, uint64_t bytes) {
  uint64_t words[8] = {};
  words[4] = uint64_t{e.immediate} << 32;
  words[5] = uint64_t{be32(bytes)} << 32;
  const auto counter = static_cast<uint64_t>(__builtin_bswap16(static_cast<uint16_t>(receiver.received++)));
  words[7] = be32(receiver.number) | counter << 32 | uint64_t{responderImmediate} << 60;
  ++counters_.immediates;
  putCqe(receiver.pair.receiveCompletions, words);
}

}  // namespace test
