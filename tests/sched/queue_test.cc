// Words of the device command queue (include/mkernel/queue.h): notification, header, lap, place.
#include "mkernel/queue.h"

#include "must.h"

namespace mk::sched::test {
namespace {

TEST_CASE("a notification carries rail index and slot") {
  for (uint32_t rail : {0u, 1u, 511u, 1023u}) {
    for (uint64_t slot : {0ull, 1ull, 4ull, 0x80000ull, 0xfffffull}) {
      for (uint64_t epoch = 0; epoch < 4; ++epoch) {
        const uint32_t imm = mkImmediate(rail, slot, epoch);
        CHECK(mkImmediateRail(imm) == rail);
        CHECK(mkImmediateSlot(imm) == slot);
        CHECK((imm & 3u) == epoch);
      }
    }
  }
}

TEST_CASE("the receiver recovers every epoch from two before its reference to one ahead") {
  std::vector<uint64_t> references;
  for (uint64_t e = 0; e <= 20; ++e) references.push_back(e);
  for (uint64_t e = 0xfffffff0ull; e <= 0x100000010ull; ++e) references.push_back(e);
  for (uint64_t e = 0x7ffffff8ull; e <= 0x80000008ull; ++e) references.push_back(e);
  for (uint64_t e = 0xffffffff00000000ull - 8; e <= 0xffffffff00000000ull + 8; ++e) references.push_back(e);
  for (const uint64_t e : references) {
    for (uint64_t epoch = e < 2 ? 0 : e - 2; epoch <= e + 1; ++epoch) {
      for (const uint32_t imm :
           {mkImmediate(0, 0, epoch), mkImmediate(1023, 0xfffff, epoch), mkImmediate(5, 77, epoch)}) {
        MUST(mkImmediateEpoch(imm, e) == epoch, "reference " << e << ", sent " << epoch);
      }
    }
  }
}

TEST_CASE("a header holds lap, operation, queue and peer") {
  for (const uint16_t lap : {uint16_t{1}, uint16_t{2}, uint16_t{0x8000}, uint16_t{65535}}) {
    for (uint32_t op : {0u, MK_COMMAND_OP_WRITE, 255u}) {
      for (uint32_t queue : {0u, 1u, 255u}) {
        for (uint32_t peer : {0u, 1u, 65535u}) {
          const uint64_t header = mkCommandHeader(lap, op, queue, peer);
          CHECK(mkHeaderLap(header) == lap);
          CHECK(mkHeaderOp(header) == op);
          CHECK(mkHeaderQueue(header) == queue);
          CHECK(mkHeaderPeer(header) == peer);
          CHECK(header >> 48 == 0);
        }
      }
    }
  }
}

TEST_CASE("laps count from 1, change with every round of the ring and wrap from 65535 to 1") {
  for (uint64_t slots : {1ull, 2ull, 64ull, 4096ull}) {
    CHECK(mkCommandLap(0, slots) == 1);
    CHECK(mkCommandLap(slots - 1, slots) == 1);
    CHECK(mkCommandLap(slots, slots) == 2);
    CHECK(mkCommandLap(65534 * slots, slots) == 65535);
    CHECK(mkCommandLap(65535 * slots - 1, slots) == 65535);
    CHECK(mkCommandLap(65535 * slots, slots) == 1);
    uint16_t before = 0;
    for (uint64_t round = 0; round < 3 * 65535ull; ++round) {
      const uint16_t lap = mkCommandLap(round * slots + round % slots, slots);
      MUST(lap != 0 && lap != before, "round " << round << " of " << slots << " slots");
      MUST(lap == (before == 65535 ? 1 : before + 1), "round " << round << " of " << slots << " slots");
      before = lap;
    }
  }
  CHECK(mkCommandLap(UINT64_MAX, 64) != 0);
}

TEST_CASE("a place holds memory and offset") {
  for (uint32_t memory : {MK_MEMORY_HEAP, 1u, 65535u}) {
    for (uint64_t offset : {0ull, 1ull, 0xffffffffull, 0x100000000ull, (1ull << 48) - 1}) {
      CHECK(mkPlaceMemory(mkPlace(memory, offset)) == memory);
      CHECK(mkPlaceOffset(mkPlace(memory, offset)) == offset);
    }
  }
}

TEST_CASE("a command is six words without padding") {
  CHECK(sizeof(mkCommand_t) == MK_COMMAND_BYTES);
  CHECK(MK_COMMAND_BYTES == 8 * MK_COMMAND_WORDS);
}

}  // namespace
}  // namespace mk::sched::test
