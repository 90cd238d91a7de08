// Several streams and several communicators in each of several processes.
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

const Case kCase{.m = 200, .n = 136, .k = 96};

void sleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

void expectNoError(mkComm_t comm) {
  mkResult_t async = mkSuccess;
  expect(mkCommGetAsyncError(comm, &async), "async");
  expect(async, "asynchronous", comm);
}

void allGood(const Crew& crew, const World& world, const std::vector<std::string>& names) {
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    for (const std::string& name : names) MK_CHECK_NOTE(crew, r, name, 0);
  }
}

}  // namespace

// ---- Two communicators in opposite order ---------------------------------------------------------------------------

MK_ROLE(opposite) {
  mkComm_t comms[2] = {};
  mkStream_t streams[2] = {};
  for (int i = 0; i < 2; ++i) {
    if (rank.join(std::to_string(i), rank.world(), rank.rank(), &comms[i]) != mkSuccess) return;
    expect(mkCpuStreamCreate(&streams[i]), "stream");
  }
  for (int round = 0; round < 10; ++round) {
    rank.attempt("round", [&] {
      std::unique_ptr<Operands> operands[2];
      for (int i = 0; i < 2; ++i) {
        Case c = kCase;
        c.seed = static_cast<uint64_t>(2 * round + i) + 1;
        operands[i] = std::make_unique<Operands>(c, rank.world(), rank.rank(), comms[i]);
      }
      for (int i = 0; i < 2; ++i) {
        const int which = (i + rank.rank() + round) % 2;
        const mkGemmAllReduceArgs_t args = operands[which]->args();
        expect(mkGemmAllReduce(comms[which], &args, streams[which]), "launch", comms[which]);
      }
      for (int i = 0; i < 2; ++i) {
        expect(mkCpuStreamSynchronize(streams[i]), "synchronize");
        expectNoError(comms[i]);
        operands[i]->check();
      }
    });
  }
  for (int i = 0; i < 2; ++i) {
    expect(mkCpuStreamDestroy(streams[i]), "stream");
    rank.call("destroy", [&] { return mkCommDestroy(comms[(i + rank.rank()) % 2]); });
  }
}

TEST_CASE("two communicators on two streams in opposite order on neighbouring ranks") {
  const World world = GENERATE(World{2, 2}, World{1, 2});
  Crew crew("opposite", world);
  const bool finished = crew.finish(30);
  INFO(crew.story());
  REQUIRE(finished);
  allGood(crew, world, {"round", "destroy"});
}

// ---- One communicator on two streams -------------------------------------------------------------------------------

MK_ROLE(twostreams) {
  const bool all = rank.option("who") == "all";
  mkComm_t comm = rank.join();
  mkStream_t streams[2] = {};
  for (mkStream_t& s : streams) expect(mkCpuStreamCreate(&s), "stream");
  {
    const Operands first(kCase, rank.world(), rank.rank(), comm), second(kCase, rank.world(), rank.rank(), comm);
    const mkGemmAllReduceArgs_t args = first.args(), more = second.args();
    test::slowTiles(-1, 20);
    expect(mkGemmAllReduce(comm, &args, streams[0]), "launch", comm);
    if (all || rank.rank() == 0) {
      rank.call("second", [&] { return mkGemmAllReduce(comm, &more, streams[1]); });
      rank.call("none", [&] { return mkGemmAllReduce(comm, &more, nullptr); });
    } else {
      rank.call("same", [&] { return mkGemmAllReduce(comm, &more, streams[0]); });
    }
    expect(mkCpuStreamSynchronize(streams[0]), "synchronize");
    rank.attempt("first check", [&] { first.check(); });
    if (all) {
      // Once it has finished, another stream is as good.
      expectNoError(comm);
      expect(mkGemmAllReduce(comm, &more, streams[1]), "launch", comm);
      expect(mkCpuStreamSynchronize(streams[1]), "synchronize");
      rank.attempt("second check", [&] { second.check(); });
    } else {
      for (mkResult_t async = mkSuccess; async == mkSuccess; sleepMs(5))
        expect(mkCommGetAsyncError(comm, &async), "async");
      rank.note("async", 0, mkGetLastError(comm));
    }
  }
  for (mkStream_t s : streams) expect(mkCpuStreamDestroy(s), "stream");
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("a second stream while an operation is unfinished on the first") {
  const World world = GENERATE(World{2, 2}, World{1, 2});
  const std::string who = GENERATE("all", "one");
  Crew crew("twostreams", world, {{"who", who}});
  const bool finished = crew.finish(30);
  INFO(who << "\n" << crew.story());
  REQUIRE(finished);
  allGood(crew, world, {"first check", "destroy"});
  for (int r = 0; r < world.ranks(); ++r) {
    if (who == "all" || r == 0) {
      for (const char* name : {"second", "none"}) {
        MK_CHECK_NOTE(crew, r, name, mkErrorInvalidUsage);
        CHECK(crew.note(r, name).text.find("unfinished") != std::string::npos);
      }
    }
    if (who == "all") MK_CHECK_NOTE(crew, r, "second check", 0);
    // The others went on on the first stream, and wait there for rank 0.
    if (who == "one") CHECK(test::namesRank(crew.note(r, "async").text, 0));
  }
}

// ---- Overlapping and successive communicators ------------------------------------------------------------------------

MK_ROLE(overlapping) {
  const bool nodes = rank.option("nodes") == "1";
  const World pair = nodes ? World{2, 1} : World{1, 2};
  mkComm_t left = nullptr, right = nullptr;  // {0, 1} and {1, 2}
  if (rank.rank() <= 1 && rank.join("left", pair, rank.rank(), &left) != mkSuccess) return;
  if (rank.rank() >= 1 && rank.join("right", pair, rank.rank() - 1, &right) != mkSuccess) return;
  for (int round = 0; round < 10; ++round) {
    Case c = kCase;
    c.window = round % 2 == 1;
    c.seed = static_cast<uint64_t>(round) + 1;
    if (left != nullptr) rank.operation("left op", left, pair, rank.rank(), c);
    if (right != nullptr) rank.operation("right op", right, pair, rank.rank() - 1, c);
  }
  if (left != nullptr) rank.call("destroy left", [&] { return mkCommDestroy(left); });
  if (right != nullptr) {
    rank.operation("right op", right, pair, rank.rank() - 1, kCase);
    rank.call("destroy right", [&] { return mkCommDestroy(right); });
  }
}

TEST_CASE("overlapping communicators of ranks 0 and 1 and of ranks 1 and 2") {
  const std::string nodes = GENERATE("0", "1");
  Crew crew("overlapping", {1, 3}, {{"nodes", nodes}});
  const bool finished = crew.finish(30);
  INFO(crew.story());
  REQUIRE(finished);
  for (int r = 0; r < 3; ++r) {
    CHECK(crew.status(r) == 0);
    if (r <= 1) MK_CHECK_NOTE(crew, r, "left op check", 0);
    if (r <= 1) MK_CHECK_NOTE(crew, r, "destroy left", mkSuccess);
    if (r >= 1) MK_CHECK_NOTE(crew, r, "right op check", 0);
    if (r >= 1) MK_CHECK_NOTE(crew, r, "destroy right", mkSuccess);
  }
}

MK_ROLE(successive) {
  const World worlds[] = {{1, 2}, {3, 1}, {2, 2}, {1, 1}, {2, 1}, {4, 1}, {1, 4}};
  mkComm_t whole = rank.join();  // lives all the while
  int number = 0;
  for (const World& world : worlds) {
    const std::string name = "number" + std::to_string(number++);
    if (rank.rank() < world.ranks()) {
      mkComm_t comm = nullptr;
      if (rank.join(name, world, rank.rank(), &comm) != mkSuccess) return;
      rank.operation(name, comm, world, rank.rank(), kCase);
      rank.call(name + " destroy", [&] { return mkCommDestroy(comm); });
      rank.note(name + " good");
    }
    rank.operation("whole", whole, rank.world(), rank.rank(), kCase);
  }
  rank.call("destroy", [&] { return mkCommDestroy(whole); });
}

TEST_CASE("successive communicators of different sizes beside one that lives on") {
  const World world{2, 2};
  Crew crew("successive", world);
  const bool finished = crew.finish(30);
  INFO(crew.story());
  REQUIRE(finished);
  allGood(crew, world, {"whole check", "destroy"});
  const int sizes[] = {2, 3, 4, 1, 2, 4, 4};
  for (int number = 0; number < 7; ++number) {
    for (int r = 0; r < sizes[number]; ++r) {
      const std::string name = "number" + std::to_string(number);
      MK_CHECK_NOTE(crew, r, name + " check", 0);
      MK_CHECK_NOTE(crew, r, name + " destroy", mkSuccess);
    }
  }
}
