// Abort and revoke with work in flight: bounded, nothing that can still be written is freed, everybody else hears of it.
#include <memory>
#include <thread>

#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::expect;
using test::Note;
using test::Operands;
using test::World;

namespace {

// 35 tiles; with 20 ms each an operation takes most of a second.
const Case kLarge{.m = 400, .n = 264, .k = 32};
constexpr int kTeardownMs = 3000 * test::kSlow;

void sleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// The heaps of a communicator that is gone; the last reference may be in the hands of a stream's thread for a moment.
int heapsLeft() {
  for (int i = 0; i < 200 && test::mappings("mkernel-heap") > 0; ++i) sleepMs(5);
  return test::mappings("mkernel-heap");
}

}  // namespace

MK_ROLE(abort) {
  const bool victim = rank.rank() == rank.number("victim");
  const std::string how = rank.option("how");
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = kTeardownMs; });
  mkStream_t stream = nullptr;
  expect(mkCpuStreamCreate(&stream), "stream");
  Case c = kLarge;
  c.window = rank.option("window") == "1";
  if (!c.window && rank.world().locals > 1) c.op = MK_OP_GEMM_REDUCE_SCATTER;
  std::vector<std::unique_ptr<Operands>> sets;
  for (int i = 0; i < 3; ++i) sets.push_back(std::make_unique<Operands>(c, rank.world(), rank.rank(), comm));
  sets[0]->reserve();
  test::slowTiles(-1, 20);
  for (const auto& o : sets) expect(o->launch(stream), "launch", comm);
  rank.note("launched");
  if (victim) {
    sleepMs(250);
    if (how == "abort") {
      rank.call("ending", [&] { return mkCommAbort(comm); });
      comm = nullptr;
    } else {
      rank.call("revoke", [&] { return mkCommRevoke(comm); });
      rank.call("after", [&] { return sets[2]->launch(); });
    }
  }
  if (how != "abort" || !victim) {
    rank.call("synchronize", [&] { return mkCpuStreamSynchronize(stream); });
    mkResult_t async = mkSuccess;
    expect(mkCommGetAsyncError(comm, &async), "async");
    rank.note("op", async, mkGetLastError(comm));
    rank.call("ending", [&] { return mkCommDestroy(comm); });
  }
  // Nothing is read from them or written to them any more: the address sanitizer would say so.
  sets.clear();
  rank.note("heaps", heapsLeft());
  expect(mkCpuStreamDestroy(stream), "stream");
}

TEST_CASE("abort and revoke with operations in flight") {
  const World world = GENERATE(World{1, 1}, World{1, 3}, World{2, 2}, World{3, 1});
  const std::string how = GENERATE("abort", "revoke");
  const std::string window = GENERATE("0", "1");
  if (window == "1" && (world.locals == 1 || (!test::kPlain && world.nodes == 1))) return;
  const int victim = how == "abort" ? world.ranks() - 1 : 0;
  Crew crew("abort", world, {{"victim", std::to_string(victim)}, {"how", how}, {"window", window}});
  const bool finished = crew.finish(20);
  INFO(world.nodes << " nodes x " << world.locals << ", " << how << " by rank " << victim << ", window " << window
                   << "\n"
                   << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    const Note ending = crew.note(r, "ending");
    INFO("rank " << r << ": " << ending.text);
    CHECK(ending.there);
    CHECK(ending.code == mkSuccess);
    CHECK(ending.seconds() < kTeardownMs * 1e-3 * 0.7);
    MK_CHECK_NOTE(crew, r, "heaps", 0);
    if (r == victim) {
      if (how == "abort") continue;
      CHECK(crew.note(r, "revoke").seconds() < 0.1 * test::kSlow);
      MK_CHECK_NOTE(crew, r, "after", mkErrorRevoked);
      MK_CHECK_NOTE(crew, r, "op", mkErrorRevoked);
      continue;
    }
    const Note op = crew.note(r, "op");
    INFO("op: " << op.text);
    CHECK(op.code == mkErrorRemote);
    CHECK(test::namesRank(op.text, victim));
    CHECK(static_cast<double>(crew.note(r, "synchronize").endNs - crew.note(victim, "launched").endNs) * 1e-9 <
          0.25 + 1.5 * test::kSlow);
  }
}

// ---- A peer that does not let go -----------------------------------------------------------------------------------

MK_ROLE(holder) {
  const bool holds = rank.rank() == rank.number("victim");
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 1000 * test::kSlow; });
  rank.operation("before", comm, rank.world(), rank.rank(), kLarge);
  if (holds) test::hookOnce(rank.rank(), 2, mk::emu::Point::multiply, 5, [&] { rank.await("go on"); });
  mkStream_t stream = nullptr;
  expect(mkCpuStreamCreate(&stream), "stream");
  {
    const Operands operands(kLarge, rank.world(), rank.rank(), comm);
    const mkGemmAllReduceArgs_t args = operands.args();
    expect(mkGemmAllReduce(comm, &args, stream), "launch", comm);
    sleepMs(200);
    rank.call("abort", [&] { return mkCommAbort(comm); });
    rank.note("heaps", test::mappings("mkernel-heap"));
    rank.await("go on");
    rank.call("synchronize", [&] { return mkCpuStreamSynchronize(stream); });
  }
  expect(mkCpuStreamDestroy(stream), "stream");
  rank.meet("end");
}

TEST_CASE("what a peer has not let go of stays allocated and the error names the peer") {
  const World world = GENERATE(World{1, 2}, World{2, 1});
  Crew crew("holder", world, {{"victim", "1"}});
  bool good = crew.untilNoted(0, "heaps", 15) && crew.untilNoted(1, "heaps", 15);
  crew.mark("go on");
  good = good && crew.finish(15);
  INFO(world.nodes << " nodes x " << world.locals << "\n" << crew.story());
  REQUIRE(good);
  const Note abort = crew.note(0, "abort"), own = crew.note(1, "abort");
  INFO(abort.text << "\n" << own.text);
  CHECK(abort.code == mkErrorRemote);
  CHECK(test::namesRank(abort.text, 1));
  CHECK(abort.text.find("stays allocated") != std::string::npos);
  CHECK(abort.seconds() < (1.0 + 1.0) * test::kSlow);
  CHECK(crew.note(0, "heaps").code > 0);
  // The holder's own agent had not left.
  CHECK(own.code == mkErrorTimeout);
  CHECK(own.seconds() < (1.0 + 1.0) * test::kSlow);
  CHECK(crew.note(1, "heaps").code > 0);
  for (int r = 0; r < 2; ++r) CHECK(crew.status(r) == 0);
}

// ---- Ranks as threads: one address space, so a write after the end is seen --------------------------------------------

TEST_CASE("ranks as threads free everything right after revoking") {
  const World world = GENERATE(World{1, 2}, World{2, 2});
  const bool window = GENERATE(false, true);
  test::slowTiles(-1, 5);
  const auto errors = test::runWorld(
      world,
      [&](mkComm_t comm, int rank) {
        Case c = kLarge;
        c.window = window;
        auto operands = std::make_unique<Operands>(c, world, rank, comm);
        const mkGemmAllReduceArgs_t args = operands->args();
        mkStream_t stream = nullptr;
        expect(mkCpuStreamCreate(&stream), "stream");
        for (int i = 0; i < 2; ++i) expect(mkGemmAllReduce(comm, &args, stream), "launch", comm);
        if (rank == 1) {
          sleepMs(60);
          expect(mkCommRevoke(comm), "revoke");
          // An abort would take the handle that runWorld destroys; the two differ in what they wait for only.
        }
        expect(mkCpuStreamSynchronize(stream), "synchronize");
        mkResult_t async = mkSuccess;
        expect(mkCommGetAsyncError(comm, &async), "async");
        if (async != (rank == 1 ? mkErrorRevoked : mkErrorRemote)) throw std::string("not the error of a revocation");
        operands.reset();
        expect(mkCpuStreamDestroy(stream), "stream");
      },
      [](mkConfig_t& c, int) { c.heapBytes = 8 << 20; });
  test::slowTiles(-1, 0);
  std::string all;
  for (const auto& e : errors) all += e + "\n";
  INFO(all);
  CHECK(errors.empty());
  CHECK(heapsLeft() == 0);
}
