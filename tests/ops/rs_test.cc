// GEMM+ReduceScatter: what is its own among arguments, choices and places; and the values of the activations.
#include <cmath>
#include <cstdio>
#include <limits>

#include "ops/require.h"
#include "ops/world.h"
#include "support/catch_compat.h"

using test::Case;
using test::expect;
using test::Operands;
using test::requireAll;
using test::World;

namespace {

constexpr int kScatter = MK_OP_GEMM_REDUCE_SCATTER;

std::string format(uint32_t activation, double x, double is, double should) {
  char text[120];
  std::snprintf(text, sizeof(text), "activation %u of %g is %g, should be %g", activation, x, is, should);
  return text;
}

}  // namespace

TEST_CASE("reduce-scatter: arguments that do not fit are refused by name") {
  const World world{1, 3};
  requireAll(world, [&](mkComm_t comm, int rank) {
    const Operands o({.op = kScatter, .m = 37, .n = 40, .k = 72, .bias = true}, world, rank, comm);
    const mkGemmReduceScatterArgs_t good = o.scatterArgs();
    expect(mkOpCheck(comm, kScatter, &good), "good");
    const auto refused = [&](const std::string& text, mkResult_t code, const auto& change, int op = kScatter) {
      mkGemmReduceScatterArgs_t x = good;
      mkTune_t tune = *good.tune;
      x.tune = &tune;
      change(x, tune);
      expect(mkOpCheck(comm, op, &x), text.c_str(), nullptr, code);
      if (std::string(mkGetLastError(nullptr)).find(text) == std::string::npos)
        throw std::string(mkGetLastError(nullptr)) + " instead of " + text;
    };
    using Args = mkGemmReduceScatterArgs_t;
    const mkResult_t bad = mkErrorInvalidArgument;
    // In shards of 13: 13, 13, 11.
    refused("c.dims[0] is 37; legal: the rows of rank " + std::to_string(rank) +
                " of the 37 of a, in shards of 13 = " + (rank == 2 ? "11" : "13"),
            bad, [](Args& x, mkTune_t&) { x.c.dims[0] = 37; });
    refused("b.dims[1] is 48; legal: c.dims[1], N = 40", bad, [](Args& x, mkTune_t&) { x.b.dims[1] = 48; });
    refused("b.dims[0] is 16; legal: a.dims[1], K of this rank = 24", bad,
            [](Args& x, mkTune_t&) { x.b.dims[0] = 16; });
    refused("c.dtype", bad, [](Args& x, mkTune_t&) { x.c.dtype = mkFloat16; });
    refused("bias.dims[0] is 8", bad, [](Args& x, mkTune_t&) { x.bias.dims[0] = 8; });
    refused("wireDtypePlus1 is 3", bad, [](Args& x, mkTune_t&) { x.wireDtypePlus1 = 3; });
    refused("activation is 5; legal: 0 to 4", bad, [](Args& x, mkTune_t&) { x.activation = 5; });
    refused("scaleA", mkErrorNotSupported, [](Args& x, mkTune_t&) { x.scaleA = x.alpha; });
    refused("reserved0 is 7", mkErrorVersion, [](Args& x, mkTune_t&) { x.reserved0 = 7; });
    refused("tune.exchange is 1; legal for mkGemmReduceScatter: 0", bad,
            [](Args&, mkTune_t& t) { t.exchange = MK_EXCHANGE_SWAP; });
    refused("tune.chunkRows is 4; legal for mkGemmReduceScatter: 0", bad, [](Args&, mkTune_t& t) { t.chunkRows = 4; });
    refused(
        "op is 77; legal: ", bad, [](Args&, mkTune_t&) {}, 77);
    refused("(mkGemmAllReduceArgs_t); legal is 0x6d6b0011 (mkGemmReduceScatterArgs_t)", bad,
            [](Args& x, mkTune_t&) { x.structId = MK_ID_GEMM_ALL_REDUCE_ARGS; });
  });
}

TEST_CASE("reduce-scatter: what was chosen can be asked for, and given back") {
  const World world{2, 2};
  requireAll(world, [&](mkComm_t comm, int rank) {
    Case c{.op = kScatter, .m = 300, .n = 136, .k = 32};
    c.tune.chunkTiles = 3;
    c.tune.receiveAgents = 2;
    c.tune.tileM = 32;
    const Operands o(c, world, rank, comm);
    const mkGemmReduceScatterArgs_t args = o.scatterArgs();
    mkTune_t tune;
    MK_INIT(&tune, MK_ID_TUNE);
    expect(mkTuneQuery(comm, kScatter, &args, &tune), "query");
    if (tune.exchange != 0 || tune.chunkTiles != 3 || tune.receiveAgents != 2 || tune.tileM != 32 || tune.tileN == 0 ||
        tune.chunkRows != 0 || tune.computeAgents == 0 || tune.minSMs < 5)
      throw std::string("not what was asked for");
    c.tune = tune;
    c.tune.minSMs = 0;
    test::runCase(c, world, rank, comm);
  });
}

// C may lie in a window on one rank and not on another: nobody else writes it.
TEST_CASE("reduce-scatter: each rank's C lies where that rank likes") {
  const World world = GENERATE(from_range(test::worlds({World{1, 2}, World{2, 2}})));
  requireAll(world, [&](mkComm_t comm, int rank) {
    const Case c{.op = kScatter, .m = 100, .n = 72, .k = 64};
    const Operands plain(c, world, rank, comm);
    Case inWindow = c;
    inWindow.window = true;
    const Operands windowed(inWindow, world, rank, comm);
    plain.reserve();
    const Operands& mine = rank % 2 == 0 ? plain : windowed;
    expect(mine.launch(), "launch", comm);
    mine.check();
  });
}

// K is 0 and beta 1, so C becomes the activation of what it was.
TEST_CASE("activations of single values, infinities and not-a-numbers included") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> values = {0.0f, -0.0f, inf, nan, 1e-30f, -1e-30f, 3e38f};
  while (values.size() < 160) values.push_back(-14.0f + static_cast<float>(values.size()) * 0.17f);
  requireAll({1, 1}, [&](mkComm_t comm, int rank) {
    for (const int op : {MK_OP_GEMM_ALL_REDUCE, kScatter}) {
      for (const uint32_t activation : {MK_ACTIVATION_RELU, MK_ACTIVATION_GELU, MK_ACTIVATION_SILU}) {
        Case c{.op = op, .m = 1, .n = 160, .k = 0, .out = mkFloat32, .beta = 1};
        c.activation = activation;
        Operands o(c, {1, 1}, rank, comm);
        auto* const at = static_cast<float*>(o.c());
        std::copy(values.begin(), values.end(), at);
        o.reserve();
        expect(o.launch(), "launch", comm);
        for (size_t i = 0; i < values.size(); ++i) {
          const double x = static_cast<double>(values[i]);
          const double should = activation == MK_ACTIVATION_RELU   ? (x < 0 ? 0 : x)
                                : activation == MK_ACTIVATION_GELU ? x / 2 * std::erfc(-x / std::sqrt(2.0))
                                                                   : x / (1 + std::exp(-x));
          const double is = static_cast<double>(at[i]);
          // Far out erfc(z) and exp(z) magnify the rounding of z, by up to 2 * z^2 = 200.
          const bool same = std::isnan(should)   ? std::isnan(is)
                            : std::isinf(should) ? is == should
                                                 : std::abs(is - should) <= 1e-4 * std::abs(should) + 1e-37;
          if (!same) throw format(activation, x, is, should);
        }
      }
    }
  });
}
