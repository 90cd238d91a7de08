// The software network card itself: that it notices whatever is wrong with an entry.
#include <functional>

#include "ibgda/rail.h"
#include "support/catch_compat.h"

using namespace mk;
using protocol::Mlx5Entry;
using protocol::Mlx5Queue;

namespace {

// One entry as it should be, changed by the test, and rung for.
struct Rig {
  test::SoftNic nic;
  std::unique_ptr<test::Rail> rail;
  Mlx5Queue q;
  Mlx5Entry e;
  uint32_t record = 1;
  uint64_t doorbell = 0;

  Rig() {
    nic.pause(true);
    rail = std::make_unique<test::Rail>(nic, test::Rail::Options{.entries = 8, .immediates = true, .reader = false});
    q = rail->memory(0).cardQueues[1];
    const uint64_t at = rail->memory(0).heapLayout.data(0);
    e.control(0, Mlx5Entry::write, q.number, 3, Mlx5Entry::kUpdateCompletions, 0);
    e.remote(q.remote[3].base + at, q.remote[3].key);
    e.data(q.local[3].base + at, q.local[3].key, 64);
    doorbell = e.words[0];
  }
  test::Card::Retired run() {
    std::memcpy(q.entries, e.words, sizeof(e.words));
    *q.record = __builtin_bswap32(record);
    *q.doorbell = doorbell;
    nic.step();
    return rail->card(0, 1).collect();
  }
};

}  // namespace

TEST_CASE("an entry as it should be") {
  Rig rig;
  const auto got = rig.run();
  CHECK(got.commands == 1);
  CHECK(got.entries == 1);
  CHECK(got.errors == 0);
  CHECK(rig.nic.complaints().empty());
}

TEST_CASE("every wrong field is noticed") {
  struct Fault {
    const char* name;
    std::function<void(Rig&)> make;
    const char* complaint;  // "": an error completion alone
    uint8_t syndrome;       // 0: none
  };
  const auto byte = [](Rig& r, size_t at) -> uint8_t& { return reinterpret_cast<uint8_t*>(r.e.words)[at]; };
  const Fault faults[] = {
      {"operation", [&](Rig& r) { byte(r, 3) = 0x0a, r.doorbell = r.e.words[0]; }, "operation", 0x02},
      {"modifier", [&](Rig& r) { byte(r, 0) = 1, r.doorbell = r.e.words[0]; }, "modifier", 0x02},
      {"index", [&](Rig& r) { byte(r, 2) = 1; }, "says its index is", 0x02},
      {"pair", [&](Rig& r) { byte(r, 6) ^= 1, r.doorbell = r.e.words[0]; }, "names queue pair", 0x02},
      {"segments", [&](Rig& r) { byte(r, 7) = 1, r.doorbell = r.e.words[0]; }, "number of segments", 0x02},
      {"one segment too many", [&](Rig& r) { byte(r, 7) = 4, r.doorbell = r.e.words[0]; }, "without length", 0x02},
      {"signature", [&](Rig& r) { byte(r, 8) = 1; }, "signature", 0x02},
      {"fence", [&](Rig& r) { byte(r, 11) |= 0x80; }, "flags", 0x02},
      {"no completion", [&](Rig& r) { byte(r, 11) = 0; }, "", 0},
      {"immediate", [&](Rig& r) { byte(r, 15) = 1; }, "immediate without", 0x02},
      {"behind the key", [&](Rig& r) { byte(r, 28) = 1; }, "reserved", 0x02},
      {"remote key", [&](Rig& r) { byte(r, 27) ^= 1; }, "", 0x13},
      {"remote address", [&](Rig& r) { byte(r, 16) ^= 1; }, "", 0x13},
      {"behind the remote memory",
       [&](Rig& r) {
         r.e.remote(r.q.remote[4].base + r.rail->memory(1).heapLayout.totalBytes() - 63, r.q.remote[4].key);
       },
       "", 0x13},
      {"local key", [&](Rig& r) { byte(r, 39) ^= 1; }, "", 0x04},
      {"local address", [&](Rig& r) { byte(r, 40) ^= 1; }, "", 0x04},
      {"no length", [&](Rig& r) { byte(r, 35) = 0; }, "without length", 0x02},
      {"too much inline",
       [&](Rig& r) { r.e.words[4] = r.e.words[4] >> 32 << 32 | protocol::bigEndian(uint32_t{0x80000000u | 100u}); },
       "inline bytes", 0x02},
      {"inline bytes and segments differ",
       [&](Rig& r) { r.e.words[4] = r.e.words[4] >> 32 << 32 | protocol::bigEndian(uint32_t{0x80000000u | 24u}); },
       "segments do not fit", 0x02},
      {"record of more than 16 bits", [&](Rig& r) { r.record = 0x10001; }, "more than 16 bits", 0},
      {"record behind the doorbell", [&](Rig& r) { r.record = 0; }, "not written before the doorbell", 0},
      {"record too far ahead", [&](Rig& r) { r.record = 10; }, "entries at once", 0},
      {"doorbell of another pair", [&](Rig& r) { r.doorbell ^= uint64_t{1} << 48; }, "names queue pair", 0},
      {"doorbell unlike its entry", [&](Rig& r) { r.doorbell ^= uint64_t{1} << 24; }, "is not the beginning", 0},
  };
  for (const Fault& f : faults) {
    INFO(f.name);
    Rig rig;
    f.make(rig);
    const auto got = rig.run();
    const auto complaints = rig.nic.complaints();
    std::string all;
    for (const auto& c : complaints) all += c + "\n";
    INFO(all);
    CHECK(complaints.empty() == (*f.complaint == '\0'));
    CHECK(all.find(f.complaint) != std::string::npos);
    CHECK(int(got.syndrome) == int(f.syndrome));
    if (std::string(f.name) == "no completion") CHECK(got.commands == 0);
  }
}

TEST_CASE("after an error everything else is flushed") {
  Rig rig;
  reinterpret_cast<uint8_t*>(rig.e.words)[27] ^= 1;
  CHECK(rig.run().syndrome == 0x13);
  Rig other;  // keys of one card are not for another
  const uint64_t at = rig.rail->memory(0).heapLayout.data(0);
  rig.e.control(1, Mlx5Entry::write, rig.q.number, 3, 0, 0);
  rig.e.remote(rig.q.remote[3].base + at, rig.q.remote[3].key);
  std::memcpy(rig.q.entries + 8, rig.e.words, sizeof(rig.e.words));
  *rig.q.record = __builtin_bswap32(2);
  *rig.q.doorbell = rig.e.words[0];
  rig.nic.step();
  CHECK(rig.rail->card(0, 1).collect().syndrome == 0x05);
  CHECK(rig.nic.complaints().empty());
}

TEST_CASE("a doorbell that goes back, and completions nobody reads, are noticed") {
  Rig rig;
  CHECK(rig.run().commands == 1);
  rig.e.control(1, Mlx5Entry::write, rig.q.number, 3, Mlx5Entry::kUpdateCompletions, 0);
  std::memcpy(rig.q.entries + 8, rig.e.words, sizeof(rig.e.words));
  *rig.q.record = __builtin_bswap32(2);
  *rig.q.doorbell = Mlx5Entry::controlWord(0xffff, Mlx5Entry::write, rig.q.number, 3);
  rig.nic.step();
  REQUIRE(!rig.nic.complaints().empty());
  CHECK(rig.nic.complaints().front().find("goes back") != std::string::npos);

  Rig slow;
  for (uint32_t i = 0; i < 17; ++i) {
    slow.e.control(i, Mlx5Entry::write, slow.q.number, 3, Mlx5Entry::kUpdateCompletions, 0);
    std::memcpy(slow.q.entries + i % 8 * 8, slow.e.words, sizeof(slow.e.words));
    *slow.q.record = __builtin_bswap32(i + 1);
    *slow.q.doorbell = slow.e.words[0];
    slow.nic.step();
  }
  REQUIRE(slow.nic.complaints().size() == 1);
  CHECK(slow.nic.complaints().front().find("overruns") != std::string::npos);
}

TEST_CASE("a write with immediate waits for a receive entry") {
  Rig rig;
  rig.e.control(0, Mlx5Entry::writeImmediate, rig.q.number, 3, Mlx5Entry::kUpdateCompletions, 0x01020304);
  rig.doorbell = rig.e.words[0];
  for (int i = 0; i < 8; ++i) {
    rig.e.control(static_cast<uint64_t>(i), Mlx5Entry::writeImmediate, rig.q.number, 3, Mlx5Entry::kUpdateCompletions,
                  0x01020304);
    std::memcpy(rig.q.entries + i * 8, rig.e.words, sizeof(rig.e.words));
  }
  *rig.q.record = __builtin_bswap32(8);
  *rig.q.doorbell = rig.e.words[0];
  rig.nic.step();
  CHECK(rig.rail->card(0, 1).collect().commands == 8);
  auto arrived = rig.rail->card(1, 0).collect();
  CHECK(arrived.arrivals == 8);
  CHECK(arrived.immediate == 0x01020304);
  // The receiver offered as many as the queue is long; the ninth waits.
  rig.e.control(8, Mlx5Entry::writeImmediate, rig.q.number, 3, Mlx5Entry::kUpdateCompletions, 9);
  std::memcpy(rig.q.entries, rig.e.words, sizeof(rig.e.words));
  *rig.q.record = __builtin_bswap32(9);
  *rig.q.doorbell = rig.e.words[0];
  rig.nic.step();
  CHECK(rig.rail->card(0, 1).collect().commands == 0);
  rig.rail->card(1, 0).offerReceives(1);
  rig.nic.step();
  CHECK(rig.rail->card(0, 1).collect().commands == 1);
  CHECK(rig.rail->card(1, 0).collect().immediate == 9);
  CHECK(rig.nic.complaints().empty());
}
