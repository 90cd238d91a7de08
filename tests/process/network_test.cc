// A network that fails or loses writes: every rank gets an error that says where, nothing hangs.
#include <memory>

#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::Note;
using test::World;

namespace {

const Case kCase{.m = 200, .n = 136, .k = 96};

}  // namespace

MK_ROLE(network) {
  mkComm_t comm = rank.join([](mkConfig_t& c) {
    c.timeoutMs = 1000 * test::kSlow;
    c.teardownTimeoutMs = 2000 * test::kSlow;
  });
  mkResult_t result = mkSuccess;
  for (int i = 0; i < 20 && result == mkSuccess; ++i)
    result = rank.operation("op", comm, rank.world(), rank.rank(), kCase);
  rank.operation("next", comm, rank.world(), rank.rank(), kCase);
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

namespace {

void check(Crew& crew, const World& world, bool fails, bool alone) {
  const std::string text = crew.note(0, "op").text;
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    const Note op = crew.note(r, "op"), destroy = crew.note(r, "destroy");
    INFO("rank " << r << ": " << op.text << "\n" << destroy.text);
    CHECK(op.text == text);  // one verdict
    if (fails) {
      CHECK(op.code == mkErrorTransport);
      CHECK(op.text.find("transport loopback: ") != std::string::npos);
      if (alone) CHECK(test::namesRank(op.text, 1));
      CHECK(op.seconds() < 2.5 * test::kSlow);
    } else {
      CHECK(op.code == mkErrorTimeout);
      CHECK(op.text.find("stage \"") != std::string::npos);
      CHECK(op.text.find("epoch ") != std::string::npos);
      CHECK(op.seconds() < 4.0 * test::kSlow);
    }
    MK_CHECK_NOTE(crew, r, "next", op.code);
    CHECK(destroy.there);
    CHECK(destroy.seconds() < 3.0 * test::kSlow);
  }
}

}  // namespace

TEST_CASE("network writes fail or are lost") {
  const World world = GENERATE(World{2, 1}, World{2, 2}, World{3, 1});
  const std::string contract = GENERATE("ordered", "completion");
  const bool alone = GENERATE(false, true);  // on rank 1 only
  if (contract == "completion" && (world.ranks() != 2 || !test::kPlain)) return;
  std::vector<std::string> settings;
  std::vector<std::unique_ptr<Crew>> crews;  // at the same time: they mostly wait
  for (const std::string what : {"FAIL", "DROP"}) {
    // The word by which a rank enters the second time or so; in the first operation; in a later one.
    for (const int after : {1, 4, 23}) {
      if (!test::kPlain && after == 4) continue;
      settings.push_back("MKERNEL_LOOPBACK_" + what + "_AFTER=" + std::to_string(after));
      crews.push_back(std::make_unique<Crew>(
          "network", world, test::Options{},
          std::vector<std::string>{"MKERNEL_LOOPBACK_CONTRACT=" + contract, (alone ? "1:" : "") + settings.back()}));
    }
  }
  for (size_t i = 0; i < crews.size(); ++i) {
    const bool finished = crews[i]->finish(20);
    INFO(world.nodes << " nodes x " << world.locals << ", " << contract << ", " << settings[i]
                     << (alone ? " on rank 1" : " everywhere") << "\n"
                     << crews[i]->story());
    REQUIRE(finished);
    check(*crews[i], world, settings[i].find("FAIL") != std::string::npos, alone);
  }
}
