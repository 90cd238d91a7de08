// Whole operations over queues that agents write themselves: communicators of several nodes, the ibgda plugin, and the
// software network card behind it.
#include <dlfcn.h>

#include "ops/world.h"
#include "support/catch_compat.h"

namespace {

using test::Case;
using test::World;

struct Counts {
  uint64_t entries, payloads, inlines, errors;
};

// A function of the copy of the plugin that the library has loaded, or will load.
template <class Function>
Function* ofCard(const char* name) {
  void* const object = dlopen(MK_TEST_IBGDA, RTLD_NOW);
  REQUIRE(object != nullptr);
  auto* const function = reinterpret_cast<Function*>(dlsym(object, name));
  REQUIRE(function != nullptr);
  return function;
}

Counts counts() {
  Counts c = {};
  ofCard<void(uint64_t*)>("mkTestNicCounters")(&c.entries);
  return c;
}

void run(const World& world, const std::vector<Case>& cases, int rounds) {
  const auto errors = test::runWorld(world, [&](mkComm_t comm, int rank) {
    mkCommInfo_t info;
    MK_INIT(&info, MK_ID_COMM_INFO);
    for (int round = 0; round < rounds; ++round)
      for (const Case& c : cases) test::runCase(c, world, rank, comm);
    test::expect(mkCommFinalize(comm), "finalize", comm);
    test::expect(mkCommQuery(comm, &info), "query");
    if (std::string(info.transport) != "ibgda") throw std::string("transport ") + info.transport;
    // The proxy has posted nothing: agents have.
    if (info.netBatches != 0) throw std::to_string(info.netBatches) + " submissions by the proxy";
    if (info.netMessagesSent == 0) throw std::string("nothing was sent");
  });
  for (const auto& e : errors) UNSCOPED_INFO(e);
  CHECK(errors.empty());
}

Case shape(int64_t m, int64_t n, int64_t k) {
  Case c;
  c.m = m;
  c.n = n;
  c.k = k;
  return c;
}

}  // namespace

TEST_CASE("operations posted by agents") {
  const World world = GENERATE(World{2, 1}, World{2, 2}, World{3, 2}, World{4, 1});
  if (test::kBrief && world.nodes != 3) return;
  INFO(world.nodes << " nodes of " << world.locals);
  const Counts before = counts();
  Case transposed = shape(129, 200, 256);
  transposed.transposed = true;
  transposed.bias = true;
  transposed.beta = 0.5f;
  Case wide = shape(256, 512, 128);
  wide.out = mkFloat32;
  wide.tune.chunkTiles = 1;
  Case scatter = shape(129, 200, 256);
  scatter.op = MK_OP_GEMM_REDUCE_SCATTER;
  run(world, {shape(64, 64, 96), transposed, wide, shape(1, 8, 64), scatter}, test::kBrief ? 1 : 3);
  const Counts after = counts();
  CHECK(after.payloads > before.payloads);
  CHECK(after.inlines > after.payloads - before.payloads);
  CHECK(after.errors == before.errors);
}

TEST_CASE("a card's errors become the communicator's, by name") {
  const auto [fault, words] =
      GENERATE(std::pair{"mkTestNicBreak", "the peer does not answer: no acknowledgement for 7516 ms"},
               std::pair{"mkTestNicPortDown", "port error"});
  const World world{2, 1};
  auto* const strike = ofCard<void()>(fault);
  std::vector<std::string> said(2);
  const auto errors = test::runWorld(world, [&](mkComm_t comm, int rank) {
    test::runCase(shape(64, 64, 64), world, rank, comm);
    test::Operands o(shape(512, 512, 64), world, rank, comm);
    const mkGemmAllReduceArgs_t args = o.args();
    size_t bytes = 0;
    test::expect(mkOpWorkspaceSize(comm, MK_OP_GEMM_ALL_REDUCE, &args, &bytes), "workspace");
    test::expect(mkCommReserve(comm, bytes), "reserve", comm);
    mkResult_t result = mkSuccess;
    for (int i = 0; i < 1000 && result == mkSuccess; ++i) {
      if (i == 3 && rank == 0) strike();
      result = mkGemmAllReduce(comm, &args, nullptr);
    }
    if (result == mkSuccess) throw std::string("nobody noticed");
    said[static_cast<size_t>(rank)] = mkGetLastError(comm);
    throw said[static_cast<size_t>(rank)];  // ends with an abort
  });
  CHECK(errors.size() == 2);
  const std::string all = said[0] + " / " + said[1];
  INFO(all);
  CHECK(all.find(words) != std::string::npos);
  CHECK(all.find("ibgda") != std::string::npos);
}
