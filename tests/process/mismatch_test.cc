// Ranks that do not do the same: arguments that differ, arguments that one rank refuses, calls in another order, a rank that
// leaves.  Every rank gets a clear error, and nobody waits for ever.
#include <memory>
#include <thread>

#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::expect;
using test::Note;
using test::Operands;
using test::Rank;
using test::World;

namespace {

// Small enough for the heap of the default configuration.
const Case kUsual{.m = 64, .n = 64, .k = 64};
const char* const kKinds[] = {"M", "N", "dtype", "layout", "alpha", "wire", "offset", "activation", "operation"};

Case oddCase(const std::string& kind) {
  Case c = kUsual;
  if (kind == "M") c.m = 72;
  if (kind == "N") c.n = 72;
  if (kind == "dtype") c.in = c.out = mkFloat16;
  if (kind == "layout") c.transposed = true;
  if (kind == "alpha") c.alpha = 0.5f;
  if (kind == "wire") c.wireF32 = true;
  if (kind == "activation") c.activation = MK_ACTIVATION_GELU;
  if (kind == "operation") c.op = MK_OP_GEMM_REDUCE_SCATTER;
  return c;
}

// What tells the two argument lists apart in the error.
std::pair<const char*, const char*> values(const std::string& kind) {
  if (kind == "M") return {"M=64,", "M=72,"};
  if (kind == "N") return {"N=64,", "N=72,"};
  if (kind == "dtype") return {"a and b bf16", "a and b fp16"};
  if (kind == "layout") return {"B (K, N)", "B (N, K)"};
  if (kind == "alpha") return {"alpha=1,", "alpha=0.5,"};
  if (kind == "wire") return {"wire bf16", "wire fp32"};
  if (kind == "activation") return {"activation none", "activation gelu"};
  if (kind == "operation") return {"mkGemmAllReduce(M=64", "mkGemmReduceScatter(M=64"};
  return {"at offset 256 ", "at offset 272 "};
}

void sleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

// ---- Arguments that differ -----------------------------------------------------------------------------------------

MK_ROLE(mismatch) {
  const bool odd = rank.rank() == rank.number("odd");
  for (const std::string kind : kKinds) {
    for (const bool known : {false, true}) {
      const std::string name = kind + (known ? " known" : " new");
      mkComm_t comm = nullptr;
      if (rank.join(name, rank.world(), rank.rank(), &comm) != mkSuccess) return;
      {
        Case usual = kUsual;
        Case other = oddCase(kind);
        usual.window = other.window = kind == "offset";
        const Operands mine(usual, rank.world(), rank.rank(), comm), theirs(other, rank.world(), rank.rank(), comm);
        const auto launchOther = [&] {
          if (kind != "offset") return theirs.launch();
          mkGemmAllReduceArgs_t args = mine.args();
          args.c.offset += 16;
          return mkGemmAllReduce(comm, &args, nullptr);
        };
        if (known) {
          for (int i = 0; i < 2; ++i) {
            expect(mine.launch(), "usual", comm);
            expect(launchOther(), "other", comm);
          }
        }
        rank.meet(name);
        rank.call(name, [&] { return odd ? launchOther() : mine.launch(); });
      }
      rank.call("destroy " + name, [&] { return mkCommDestroy(comm); });
    }
  }
}

TEST_CASE("arguments that differ are an error on every rank with both values") {
  const World world = GENERATE(World{2, 2}, World{1, 3}, World{3, 2}, World{2, 1});
  const int odd = GENERATE(0, -1);
  if (odd == 0 && world.nodes != 2) return;
  const int oddRank = odd < 0 ? world.ranks() - 1 : 0;
  Crew crew("mismatch", world, {{"odd", std::to_string(oddRank)}});
  const bool finished = crew.finish(40);
  INFO(world.nodes << " nodes x " << world.locals << ", rank " << oddRank << " differs\n" << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    for (const std::string kind : kKinds) {
      for (const char* age : {" new", " known"}) {
        const Note note = crew.note(r, kind + age);
        INFO("rank " << r << ", " << kind << age << ": " << note.text);
        CHECK(note.code == mkErrorInvalidUsage);
        CHECK(test::namesRank(note.text, oddRank));
        CHECK(note.text.find(values(kind).first) != std::string::npos);
        CHECK(note.text.find(values(kind).second) != std::string::npos);
        CHECK(note.seconds() < 1.0 * test::kSlow);
        MK_CHECK_NOTE(crew, r, "destroy " + kind + age, mkSuccess);
      }
    }
  }
}

// ---- Arguments that are refused ------------------------------------------------------------------------------------

namespace {

const char* const kRefusals[] = {"misaligned", "null", "unreserved"};

mkGemmAllReduceArgs_t spoilt(mkGemmAllReduceArgs_t args, const mkGemmAllReduceArgs_t& large, const std::string& kind) {
  if (kind == "misaligned") args.a.data = static_cast<char*>(args.a.data) + 2;
  if (kind == "null") args.c.data = nullptr;
  return kind == "unreserved" ? large : args;
}

}  // namespace

MK_ROLE(refusal) {
  const bool odd = rank.rank() == rank.number("odd");
  for (const std::string kind : kRefusals) {
    mkComm_t comm = nullptr;
    if (rank.join(kind, rank.world(), rank.rank(), &comm) != mkSuccess) return;
    rank.operation(kind + " before", comm, rank.world(), rank.rank(), kUsual);
    const Operands operands(kUsual, rank.world(), rank.rank(), comm);
    const Operands large({.m = 2000, .n = 2000, .k = 8}, rank.world(), rank.rank(), comm);
    const mkGemmAllReduceArgs_t good = operands.args(), bad = spoilt(good, large.args(), kind);
    rank.meet(kind);
    rank.call(kind, [&] { return mkGemmAllReduce(comm, odd ? &bad : &good, nullptr); });
    // The rank that refused hears later that this was the end.
    for (mkResult_t async = mkSuccess; async == mkSuccess; sleepMs(5))
      expect(mkCommGetAsyncError(comm, &async), "async");
    rank.note(kind + " async", 0, mkGetLastError(comm));
    rank.call("destroy " + kind, [&] { return mkCommDestroy(comm); });
  }
}

TEST_CASE("one rank refuses its arguments while the others launch") {
  const World worlds[] = {{2, 2}, {1, 3}, {3, 1}};
  const std::map<std::string, int> code = {
      {"misaligned", mkErrorInvalidArgument}, {"null", mkErrorInvalidArgument}, {"unreserved", mkErrorNotReserved}};
  std::vector<std::unique_ptr<Crew>> crews;  // at the same time: they mostly wait
  for (const World& world : worlds)
    crews.push_back(
        std::make_unique<Crew>("refusal", world, test::Options{{"odd", std::to_string(world.ranks() - 1)}}));
  for (size_t i = 0; i < crews.size(); ++i) {
    Crew& crew = *crews[i];
    const World& world = worlds[i];
    const int odd = world.ranks() - 1;
    const bool finished = crew.finish(30);
    INFO(world.nodes << " nodes x " << world.locals << "\n" << crew.story());
    REQUIRE(finished);
    for (int r = 0; r < world.ranks(); ++r) {
      CHECK(crew.status(r) == 0);
      for (const std::string kind : kRefusals) {
        const Note note = crew.note(r, kind);
        INFO("rank " << r << ", " << kind << ": " << note.text);
        CHECK(note.code == (r == odd ? code.at(kind) : mkErrorInvalidUsage));
        CHECK(note.seconds() < 1.0 + 1.0 * test::kSlow);
        if (r != odd) CHECK(test::namesRank(note.text, odd));
        CHECK(test::namesRank(crew.note(r, kind + " async").text, odd));
        MK_CHECK_NOTE(crew, r, "destroy " + kind, mkSuccess);
      }
    }
  }
}

// A rank that waits for a second asks whether somebody has refused.
static constexpr int kLateMs = 1000 + 500 * test::kSlow;

MK_ROLE(allrefuse) {
  mkComm_t comm = rank.join();
  const Operands operands(kUsual, rank.world(), rank.rank(), comm);
  const Operands large({.m = 2000, .n = 2000, .k = 8}, rank.world(), rank.rank(), comm);
  for (int round = 0; round < 2; ++round) {
    for (const std::string kind : kRefusals) {
      const mkGemmAllReduceArgs_t bad = spoilt(operands.args(), large.args(), kind);
      rank.call(kind, [&] { return mkGemmAllReduce(comm, &bad, nullptr); });
    }
    // The others wait long enough to ask whether somebody has refused: this rank has, but so have they.
    if (rank.rank() == 0 && round == 0) sleepMs(kLateMs);
    rank.operation("after", comm, rank.world(), rank.rank(), kUsual);
  }
  // What they do about the last refusal.
  size_t bytes = 0;
  const mkGemmAllReduceArgs_t args = large.args();
  expect(mkOpWorkspaceSize(comm, MK_OP_GEMM_ALL_REDUCE, &args, &bytes), "workspace");
  rank.call("unreserved", [&] { return mkGemmAllReduce(comm, &args, nullptr); });
  rank.call("reserve", [&] { return mkCommReserve(comm, bytes); });
  if (rank.rank() == 0) sleepMs(kLateMs);
  rank.call("large", [&] { return mkGemmAllReduce(comm, &args, nullptr); });
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("all ranks refuse alike and go on") {
  const World worlds[] = {{2, 2}, {1, 3}};
  std::unique_ptr<Crew> crews[] = {std::make_unique<Crew>("allrefuse", worlds[0]),
                                   std::make_unique<Crew>("allrefuse", worlds[1])};
  for (size_t i = 0; i < 2; ++i) {
    Crew& crew = *crews[i];
    const bool finished = crew.finish(40);
    INFO(worlds[i].nodes << " nodes x " << worlds[i].locals << "\n" << crew.story());
    REQUIRE(finished);
    for (int r = 0; r < worlds[i].ranks(); ++r) {
      CHECK(crew.status(r) == 0);
      MK_CHECK_NOTE(crew, r, "misaligned", mkErrorInvalidArgument);
      MK_CHECK_NOTE(crew, r, "null", mkErrorInvalidArgument);
      MK_CHECK_NOTE(crew, r, "unreserved", mkErrorNotReserved);
      for (const char* name : {"after check", "reserve", "large", "destroy"}) MK_CHECK_NOTE(crew, r, name, mkSuccess);
      if (r != 0) CHECK(crew.note(r, "large").seconds() > kLateMs * 1e-3 - 0.3);
    }
  }
}

// ---- Calls in another order ----------------------------------------------------------------------------------------

MK_ROLE(order) {
  const std::string call = rank.option("call");
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 2000 * test::kSlow; });
  rank.operation("before", comm, rank.world(), rank.rank(), kUsual);
  void* memory = nullptr;
  mkWindow_t window = nullptr;
  expect(mkMemAlloc(&memory, 4096), "memory");
  rank.meet("ready");
  if (rank.rank() == rank.number("odd")) {
    if (call == "reserve") rank.call("odd", [&] { return mkCommReserve(comm, 64 << 20); });
    if (call == "finalize") rank.call("odd", [&] { return mkCommFinalize(comm); });
    if (call == "window") rank.call("odd", [&] { return mkCommWindowRegister(comm, memory, 4096, &window); });
  } else {
    rank.operation("odd", comm, rank.world(), rank.rank(), kUsual);
  }
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
  rank.call("free", [&] { return mkMemFree(memory); });
}

TEST_CASE("one rank is in a collective call while the others launch") {
  const World world = GENERATE(World{2, 2}, World{1, 2});
  const int odd = GENERATE(0, 1);
  const std::string calls[] = {"reserve", "finalize", "window"};
  std::vector<std::unique_ptr<Crew>> crews;  // at the same time: they mostly wait
  for (const std::string& call : calls)
    crews.push_back(
        std::make_unique<Crew>("order", world, test::Options{{"call", call}, {"odd", std::to_string(odd)}}));
  for (size_t i = 0; i < crews.size(); ++i) {
    Crew& crew = *crews[i];
    const bool finished = crew.finish(30);
    INFO(world.nodes << " nodes x " << world.locals << ", rank " << odd << " calls " << calls[i] << "\n"
                     << crew.story());
    REQUIRE(finished);
    for (int r = 0; r < world.ranks(); ++r) {
      CHECK(crew.status(r) == 0);
      const Note note = crew.note(r, "odd");
      INFO("rank " << r << ": " << note.text);
      CHECK(note.code == mkErrorInvalidUsage);
      CHECK(test::namesRank(note.text, odd));
      CHECK(note.text.find("mkGemmAllReduce") != std::string::npos);
      CHECK(note.seconds() < 1.5 + 1.0 * test::kSlow);
      MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
      MK_CHECK_NOTE(crew, r, "free", mkSuccess);
    }
  }
}

// ---- Ranks that leave ----------------------------------------------------------------------------------------------

MK_ROLE(leaver) {
  mkComm_t comm = rank.join([](mkConfig_t& c) { c.teardownTimeoutMs = 2000 * test::kSlow; });
  rank.operation("before", comm, rank.world(), rank.rank(), kUsual);
  const bool odd = rank.rank() == rank.number("odd");
  if (rank.option("how") == "exit" && odd) return;
  if (rank.option("how") == "destroy" && !odd) {
    rank.operation("one more", comm, rank.world(), rank.rank(), kUsual);
    rank.operation("and more", comm, rank.world(), rank.rank(), kUsual);
  }
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("one rank destroys while the others launch one more operation") {
  const World world = GENERATE(World{2, 2}, World{1, 3});
  const bool last = GENERATE(false, true);
  const int odd = last ? world.ranks() - 1 : 0;
  Crew crew("leaver", world, {{"how", "destroy"}, {"odd", std::to_string(odd)}});
  const bool finished = crew.finish(30);
  INFO(world.nodes << " nodes x " << world.locals << ", rank " << odd << "\n" << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    const Note destroy = crew.note(r, "destroy");
    INFO("rank " << r << ", destroy: " << destroy.text);
    // The others let go of its memory before it gives up waiting: the fault is theirs.
    CHECK(destroy.code == mkSuccess);
    CHECK(destroy.seconds() < 3.5 * test::kSlow);
    if (r == odd) continue;
    for (const char* name : {"one more", "and more"}) {
      const Note note = crew.note(r, name);
      INFO("rank " << r << ", " << name << ": " << note.text);
      CHECK(note.code == mkErrorRemote);
      CHECK(test::namesRank(note.text, odd));
      CHECK(note.seconds() < 3.0 * test::kSlow);
    }
  }
}

TEST_CASE("one rank ends without destroying") {
  const World world = GENERATE(World{2, 2}, World{1, 3});
  const bool last = GENERATE(false, true);
  const int odd = last ? world.ranks() - 1 : 0;
  Crew crew("leaver", world, {{"how", "exit"}, {"odd", std::to_string(odd)}});
  const bool finished = crew.finish(30);
  INFO(world.nodes << " nodes x " << world.locals << ", rank " << odd << "\n" << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    if (r == odd) continue;
    const Note destroy = crew.note(r, "destroy");
    INFO("rank " << r << ", destroy: " << destroy.text);
    CHECK(destroy.there);
    CHECK(destroy.seconds() < 3.5 * test::kSlow);
  }
}
