// Bytes and messages per link, against a count that walks all tiles of all ranks and knows nothing of the formulas.
#include "must.h"

namespace mk::sched::test {
namespace {

struct Traffic {
  uint64_t netBytes = 0, netMessages = 0, netBytesReceived = 0, nvlinkBytes = 0;
};

// What each rank sends, by global rank.
std::vector<Traffic> count(const World& world, const GemmArPlan& any) {
  std::vector<Traffic> traffic(world.ranks());
  const Deal deal(any.chunks);
  const uint64_t wire = any.shape.wireBytes, out = any.shape.outBytes;
  const auto net = [&](uint32_t from, uint32_t to, uint32_t local, uint64_t bytes) {
    traffic[from * world.locals + local].netBytes += bytes;
    traffic[from * world.locals + local].netMessages += 1;
    traffic[to * world.locals + local].netBytesReceived += bytes;
  };
  for (uint64_t c = 0; c < deal.owner.size(); ++c) {
    uint64_t elements = 0;
    for (uint64_t t = c * any.chunks.chunkTiles; t < any.chunks.tiles && t < (c + 1) * any.chunks.chunkTiles; ++t) {
      const Tile tile = any.grid.tile(t);
      for (uint64_t r = tile.row; r < tile.row + any.grid.tileM && r < any.shape.m; ++r) {
        for (uint64_t x = tile.col; x < tile.col + any.grid.tileN && x < any.shape.n; ++x) ++elements;
      }
    }
    const uint32_t owner = deal.owner[c];
    for (uint32_t node = 0; node < world.nodes; ++node) {
      for (uint32_t local = 0; local < world.locals; ++local) {
        if (local == owner) continue;
        traffic[node * world.locals + local].nvlinkBytes += elements * wire;  // its partial result to the owner
        traffic[node * world.locals + owner].nvlinkBytes += elements * out;   // the finished tiles to it
      }
    }
    if (world.nodes == 1) continue;
    const uint32_t home = static_cast<uint32_t>((deal.index[c] + owner) % world.nodes);
    for (uint32_t a = 0; a < world.nodes; ++a) {
      for (uint32_t b = 0; b < world.nodes; ++b) {
        if (a == b) continue;
        if (any.rail.exchange == Exchange::swap || b == home) net(a, b, owner, elements * wire);
        if (any.rail.exchange == Exchange::home && a == home) net(a, b, owner, elements * out);
      }
    }
  }
  return traffic;
}

TEST_CASE("bytes and messages of every rank equal a count over all tiles") {
  struct Types {
    uint32_t out, wire;
  };
  struct Size {
    uint64_t m, n;
  };
  uint64_t plans = 0;
  forWorlds([&](const World& world) {
    for (const Size size :
         {Size{0, 64}, Size{64, 0}, Size{1, 8}, Size{2, 16}, Size{7, 40}, Size{23, 136}, Size{32, 64}}) {
      for (uint32_t chunkTiles = 1; chunkTiles <= 5; ++chunkTiles) {
        for (const Exchange exchange : {Exchange::swap, Exchange::home}) {
          const Types types = plans % 3 == 0 ? Types{2, 2} : plans % 3 == 1 ? Types{2, 4} : Types{4, 4};
          const auto planOf = [&](uint32_t rank) {
            GemmArShape shape;
            shape.m = size.m;
            shape.n = size.n;
            shape.outBytes = types.out;
            shape.wireBytes = types.wire;
            shape.staged = plans % 2 != 0;  // changes no traffic
            shape.place = world.place(rank);
            return planGemmAr(shape, choiceOf(chunkTiles, exchange), 4);
          };
          const std::vector<Traffic> traffic = count(world, planOf(0));
          uint64_t sent = 0, received = 0;
          for (uint32_t rank = 0; rank < world.ranks(); ++rank) {
            const GemmArPlan p = planOf(rank);
            MUST(p.netBytesSent() == traffic[rank].netBytes, describe(p));
            MUST(p.netMessagesSent() == traffic[rank].netMessages, describe(p));
            MUST(p.nvlinkBytesSent() == traffic[rank].nvlinkBytes, describe(p));
            sent += p.netBytesSent();
            received += traffic[rank].netBytesReceived;
          }
          // Of the whole world: swap N(N-1) S on the wire, home (N-1) (S on the wire + S of the result).
          const uint64_t elements = size.m * size.n, n = world.nodes;
          const uint64_t total = exchange == Exchange::swap ? n * (n - 1) * elements * types.wire
                                                            : (n - 1) * elements * (types.wire + types.out);
          MUST(sent == total && received == total, describe(planOf(0)) << ": " << sent << " for " << total);
          ++plans;
        }
      }
    }
  });
  CHECK(plans == 40 * 7 * 5 * 2);
}

// Section "why home": 2(N-1)/N of S/L per NIC, up to one chunk of imbalance per owner and per home.
TEST_CASE("home: every NIC sends 2(N-1)/N of its share of the result, within a few chunks") {
  forWorlds([](const World& world) {
    if (world.nodes == 1) return;
    for (uint32_t rank = 0; rank < world.ranks(); ++rank) {
      GemmArShape shape;
      shape.m = 240;
      shape.n = 160;
      shape.place = world.place(rank);
      const GemmArPlan p = planGemmAr(shape, choiceOf(2, Exchange::home), 4);
      const double ideal = 2.0 * (world.nodes - 1) / world.nodes * 240 * 160 * 2 / world.locals;
      const double slack = 2.0 * world.nodes * static_cast<double>(p.chunkBytes());
      MUST(static_cast<double>(p.netBytesSent()) <= ideal + slack, describe(p) << ": " << p.netBytesSent());
      MUST(static_cast<double>(p.netBytesSent()) >= ideal - slack, describe(p) << ": " << p.netBytesSent());
    }
  });
}

TEST_CASE("FLOPs of a GEMM") { CHECK(gemmFlops(3, 5, 7) == Approx(210.0)); }

}  // namespace
}  // namespace mk::sched::test
