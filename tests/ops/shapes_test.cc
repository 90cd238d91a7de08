// Whole operations over all small worlds: shapes, types, layouts, windows, against fp64, and the same bits on all ranks.
#include "ops/require.h"
#include "ops/world.h"
#include "support/catch_compat.h"

using test::Case;
using test::joined;
using test::Operands;
using test::World;

namespace {

const std::vector<World> kWorlds = test::worlds({{1, 1}, {1, 2}, {1, 8}, {2, 1}, {2, 4}, {3, 2}, {4, 2}, {8, 1}});

}  // namespace

TEST_CASE("shapes and types in every world") {
  const World world = GENERATE(from_range(kWorlds));
  std::vector<Case> cases;
  cases.push_back({.m = 200, .n = 136, .k = 96});
  cases.push_back({.m = 64, .n = 64, .k = 64, .window = true});
  cases.push_back({.m = 0, .n = 64, .k = 64});
  cases.push_back({.m = 64, .n = 0, .k = 64});
  cases.push_back({.m = 1, .n = 520, .k = 40, .bias = true, .alpha = 0.5f});
  cases.push_back({.m = 63, .n = 200, .k = 8, .window = true, .beta = -1.5f});
  cases.push_back({.m = 65, .n = 200, .k = 128, .in = mkFloat16, .out = mkFloat16, .transposed = true, .padding = 8});
  cases.push_back(
      {.m = 130, .n = 72, .k = 64, .out = mkFloat32, .transposed = true, .window = true, .bias = true, .padding = 16});
  cases.push_back({.m = 97, .n = 264, .k = 72, .wireF32 = true, .alpha = 2, .beta = 0.25f, .padding = 8});
  cases.push_back({.m = 257, .n = 72, .k = 0});
  constexpr int kScatter = MK_OP_GEMM_REDUCE_SCATTER;
  cases.push_back({.op = kScatter, .m = 200, .n = 136, .k = 96});
  cases.push_back({.op = kScatter, .m = 512, .n = 64, .k = 64, .window = true});
  cases.push_back({.op = kScatter, .m = 0, .n = 64, .k = 64});
  cases.push_back({.op = kScatter, .m = 64, .n = 0, .k = 64});
  cases.push_back({.op = kScatter, .m = 1, .n = 520, .k = 40, .bias = true, .alpha = 0.5f});
  cases.push_back({.op = kScatter, .m = 5, .n = 200, .k = 8, .beta = -1.5f});
  cases.push_back({.op = kScatter,
                   .m = 65,
                   .n = 200,
                   .k = 128,
                   .in = mkFloat16,
                   .out = mkFloat16,
                   .transposed = true,
                   .padding = 8});
  cases.push_back(
      {.op = kScatter, .m = 130, .n = 72, .k = 64, .out = mkFloat32, .transposed = true, .bias = true, .padding = 16});
  cases.push_back(
      {.op = kScatter, .m = 97, .n = 264, .k = 72, .wireF32 = true, .alpha = 2, .beta = 0.25f, .padding = 8});
  cases.push_back({.op = kScatter, .m = 257, .n = 72, .k = 0});
  const auto errors = test::runWorld(world, [&](mkComm_t comm, int rank) {
    for (const Case& c : cases) test::runCase(c, world, rank, comm);
  });
  INFO(world.nodes << " nodes x " << world.locals << "\n" << joined(errors));
  CHECK(errors.empty());
}

// After alpha, beta * C and the bias, once: every one of them would show if it came behind the activation, and an activation
// of partial results, or a second one, is another value.
TEST_CASE("activations come last, and once") {
  const World world = GENERATE(from_range(test::worlds({World{1, 1}, World{1, 2}, World{2, 2}, World{3, 1}})));
  const auto errors = test::runWorld(world, [&](mkComm_t comm, int rank) {
    for (const int op : {MK_OP_GEMM_ALL_REDUCE, MK_OP_GEMM_REDUCE_SCATTER}) {
      for (const uint32_t activation :
           {MK_ACTIVATION_NONE, MK_ACTIVATION_RELU, MK_ACTIVATION_GELU, MK_ACTIVATION_SILU}) {
        Case c{.op = op, .m = 75, .n = 72, .k = 48, .bias = true, .alpha = 0.5f, .beta = -0.75f};
        c.out = activation % 2 == 0 ? mkFloat32 : mkBfloat16;
        c.activation = activation;
        test::runCase(c, world, rank, comm);
      }
    }
  });
  INFO(world.nodes << " nodes x " << world.locals << "\n" << joined(errors));
  CHECK(errors.empty());
}
