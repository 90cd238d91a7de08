// The role loops of AllGather+GEMM on one node, with plans that the CPU platform's own choices do not make: chunks in slices of
// columns, tiles of one shard on one rank that span shards on another.  Ranks are threads.
#include "protocol/ag_gemm.h"

#include <bit>
#include <thread>

#include "emu/ag_gemm.h"
#include "protocol/control.h"
#include "protocol/rank_world.h"
#include "support/catch_compat.h"

using namespace mk;
using protocol::FailRecord;
using protocol::Stage;
using sched::Gathered;

namespace {

struct AgWorld {
  uint32_t locals = 2;
  uint64_t m = 0, n = 24, k = 0;
  uint32_t chunkRows = 4, sliceCols = 0;
  std::vector<uint32_t> tileM;  // by rank
  Gathered gathered = Gathered::none;
  bool inPlace = false;  // each rank's A lies in its `gathered`

  sched::AgGemmPlan plan(uint32_t local) const {
    sched::AgGemmShape shape;
    shape.m = m;
    shape.n = n;
    shape.k = k;
    shape.gathered = gathered;
    shape.place = {1, locals, 0, local};
    shape.ranks.locals = locals;
    sched::GemmChoice choice;
    choice.tileM = tileM[local];
    choice.tileN = 16;
    choice.chunkRows = chunkRows;
    choice.sliceCols = sliceCols;
    choice.groupChunks = 2;
    choice.receiveAgents = local == 0 ? 2 : 1;
    return sched::planAgGemm(shape, choice, 8);
  }
};

// Whole numbers that bf16 has, and whose sums fp32 has.
uint16_t bf16(int value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16); }
int valueOfA(uint64_t seed, uint64_t row, uint64_t k) {
  return static_cast<int>((row * 31 + k * 7 + seed * 13 + row * k) % 17) - 8;
}
int valueOfB(uint64_t rank, uint64_t k, uint64_t col) { return static_cast<int>((k * 5 + col * 3 + rank) % 7) - 3; }

struct RankBuffers {
  std::vector<uint16_t> a, b, gathered;
  std::vector<float> c;
  std::vector<std::unique_ptr<emu::Agents>> agents;
};

// What is wrong with a rank's results, or "".
std::string wrong(const AgWorld& w, const RankBuffers& r, uint32_t local, uint64_t seed) {
  for (uint64_t row = 0; row < w.m; ++row) {
    for (uint64_t col = 0; col < w.n; ++col) {
      int sum = 0;
      for (uint64_t k = 0; k < w.k; ++k) sum += valueOfA(seed, row, k) * valueOfB(local, k, col);
      if (r.c[row * w.n + col] != static_cast<float>(sum))
        return "rank " + std::to_string(local) + ": C(" + std::to_string(row) + ", " + std::to_string(col) + ") is " +
               std::to_string(r.c[row * w.n + col]) + ", should be " + std::to_string(sum);
    }
    for (uint64_t k = 0; k < w.k && w.gathered != Gathered::none; ++k) {
      if (r.gathered[row * w.k + k] != bf16(valueOfA(seed, row, k)))
        return "rank " + std::to_string(local) + ": gathered(" + std::to_string(row) + ", " + std::to_string(k) + ")";
    }
  }
  return "";
}

// Runs `launches` operations; what went wrong, or "".
std::string run(const AgWorld& w, int launches) {
  test::RankWorld world(w.locals);
  std::vector<RankBuffers> ranks(w.locals);
  for (uint32_t l = 0; l < w.locals; ++l) {
    const sched::AgGemmPlan plan = w.plan(l);
    if (plan.workspace() > sched::kWorkspaceUnit) return "the heap is too small";
    ranks[l].b.resize(w.k * w.n);
    for (uint64_t k = 0; k < w.k; ++k)
      for (uint64_t col = 0; col < w.n; ++col) ranks[l].b[k * w.n + col] = bf16(valueOfB(l, k, col));
    ranks[l].c.resize(w.m * w.n);
    ranks[l].gathered.resize(w.m * w.k);
    ranks[l].a.resize(plan.shards.rows(l) * w.k);
    ranks[l].agents.push_back(std::make_unique<emu::Agents>(8));
  }
  std::vector<std::string> errors(w.locals);
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(launches); ++seed) {
    for (uint32_t l = 0; l < w.locals; ++l) {
      const sched::Shards shards = w.plan(l).shards;
      std::fill(ranks[l].c.begin(), ranks[l].c.end(), -1e9f);
      std::fill(ranks[l].gathered.begin(), ranks[l].gathered.end(), bf16(99));
      for (uint64_t row = 0; row < shards.rows(l); ++row) {
        for (uint64_t k = 0; k < w.k; ++k) {
          const uint16_t value = bf16(valueOfA(seed, shards.first(l) + row, k));
          (w.inPlace ? ranks[l].gathered[(shards.first(l) + row) * w.k + k] : ranks[l].a[row * w.k + k]) = value;
        }
      }
    }
    std::vector<std::thread> threads;
    for (uint32_t l = 0; l < w.locals; ++l) {
      threads.emplace_back([&, l] {
        const sched::AgGemmPlan plan = w.plan(l);
        RankBuffers& r = ranks[l];
        protocol::GemmOperands op;
        op.a = w.inPlace ? r.gathered.data() + plan.shards.first(l) * w.k : r.a.data();
        op.b = r.b.data();
        op.c = reinterpret_cast<char*>(r.c.data());
        op.k = op.aStride = w.k;
        op.bStride = op.cStride = w.n;
        op.out = protocol::Type::f32;
        emu::GatheredOutput gathered;
        gathered.stride = w.k;
        for (RankBuffers& other : ranks) gathered.bases.push_back(reinterpret_cast<char*>(other.gathered.data()));
        const FailRecord record =
            emu::runAgGemm(*r.agents[0], world.memory(l), plan, plan.hash().value(), op, gathered);
        errors[l] = record.kind != FailRecord::none
                        ? "rank " + std::to_string(l) + " failed: " + protocol::stageName(record.why.stage)
                        : wrong(w, r, l, seed);
      });
    }
    for (auto& t : threads) t.join();
    for (const std::string& e : errors)
      if (!e.empty()) return e + ", launch " + std::to_string(seed);
  }
  return "";
}

}  // namespace

TEST_CASE("allgather: rows in slices of columns, tiles of one shard, of all, and either on different ranks") {
  uint64_t spanning = 0, single = 0;
  for (const uint32_t locals : {2u, 3u}) {
    for (const uint64_t m : {2u, 9u, 30u}) {
      for (const uint64_t k : {0u, 40u, 200u}) {
        for (const uint32_t sliceCols : {0u, 64u}) {
          for (const Gathered gathered : {Gathered::none, Gathered::memory, Gathered::window}) {
            const std::vector<uint32_t> tileM = {64, m == 9 ? 1u : 64u, m == 30 ? 16u : 64u};
            const AgWorld w{.locals = locals,
                            .m = m,
                            .k = k,
                            .chunkRows = m == 30 ? 8u : 1u,
                            .sliceCols = sliceCols,
                            .tileM = tileM,
                            .gathered = gathered,
                            .inPlace = gathered != Gathered::none && k == 200};
            for (uint32_t l = 0; l < locals; ++l) ++(w.plan(l).spanning ? spanning : single);
            INFO(locals << " ranks, A " << m << " x " << k << ", slices of " << sliceCols << ", gathered "
                        << static_cast<uint32_t>(gathered) << (w.inPlace ? " in place" : ""));
            const std::string error = run(w, 3);
            INFO(error);
            CHECK(error.empty());
          }
        }
      }
    }
  }
  CHECK(spanning > 50);
  CHECK(single > 20);
}

TEST_CASE("allgather: who does not send its rows is named, also to tiles that span shards") {
  for (const uint32_t tileM : {64u, 4u}) {
    const AgWorld w{.locals = 3, .m = 30, .k = 40, .chunkRows = 4, .tileM = {tileM, tileM, tileM}};
    const sched::AgGemmPlan plan = w.plan(0);
    CHECK(plan.spanning == (tileM == 64));
    test::RankWorld world(w.locals, 8, 300);
    const uint32_t hash = plan.hash().value();
    std::vector<std::thread> threads;
    // The first has all of the second's rows, and of the third's the first chunk.
    for (uint32_t l = 1; l < w.locals; ++l) {
      threads.emplace_back([&, l] {
        emu::Launch launch;
        launch.memory = &world.memory(l);
        launch.epoch = 1;
        emu::BasePlatform p(launch);
        CHECK(protocol::enter(p, hash));
        for (uint64_t c = 0; c < (l == 1 ? plan.mostChunks() : 1); ++c)
          p.publish(protocol::heap(0, world.memory(0).heapLayout.flags(1) + plan.chunkFlag(plan.shard(0, l), c) * 8), 1,
                    protocol::Scope::node);
      });
    }
    std::vector<uint16_t> a(10 * w.k), b(w.k * w.n);
    std::vector<float> c(w.m * w.n);
    protocol::GemmOperands op;
    op.a = a.data();
    op.b = b.data();
    op.c = reinterpret_cast<char*>(c.data());
    op.k = op.aStride = w.k;
    op.bStride = op.cStride = w.n;
    op.out = protocol::Type::f32;
    emu::Agents agents(8);
    const FailRecord record = emu::runAgGemm(agents, world.memory(0), plan, hash, op, {{nullptr, nullptr, nullptr}, 0});
    for (auto& t : threads) t.join();
    CHECK(record.kind == FailRecord::timeout);
    CHECK(record.why.stage == Stage::peerRows);
    CHECK(record.why.local == 2);
    // Tiles of one shard wait for one of the two that are missing each, by an agent each; a tile of all rows for the first.
    CHECK(record.why.item >= 1);
    CHECK(record.why.item < plan.mostChunks());
    if (plan.spanning) CHECK(record.why.item == 1);
  }
}
