// What goes wrong in libraries of this kind when epochs, banks and flags are not what they should be: wrap-around, stale slots,
// back-to-back launches with skew, growth between launches, mixed shapes; and what each operation sends, byte for byte.
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "emu/hooks.h"
#include "host/comm.h"
#include "host/cpu_platform.h"
#include "ops/require.h"
#include "ops/world.h"
#include "support/catch_compat.h"
#include "support/longest_gap.h"

using test::Case;
using test::expect;
using test::info;
using test::joined;
using test::Operands;
using test::requireAll;
using test::requireSent;
using test::World;

namespace {

void launch(mkComm_t comm, const Operands& o, mkStream_t stream = nullptr) { expect(o.launch(stream), "launch", comm); }

// Sets the epoch of a quiet communicator, as if `target` operations had gone by: this rank's words and what its neighbours
// have told it.  All ranks must be between two barriers.
void jumpTo(mkComm_t handle, uint64_t target) {
  const std::shared_ptr<mk::Comm> comm = mk::Comm::find(handle);
  const mk::emu::RankMemory& m = static_cast<mk::CpuPlatform&>(comm->platform()).memory();
  using mk::protocol::OwnLayout;
  for (const auto w : {OwnLayout::epoch, OwnLayout::donePublished, OwnLayout::enteredNewest})
    m.ownWord(w).store(target);
  const auto set = [&](uint64_t offset) { m.flag(mk::protocol::heap(m.place.local, offset)).store(target); };
  for (uint32_t l = 0; l < m.place.locals; ++l) {
    set(m.controlLayout.doneLocal(l));
    set(m.controlLayout.railEntered(l));
    // Entered words hold the low half of the last two epochs: every operation overwrites one.
    for (const uint64_t e : {target - 1, target})
      m.flag(mk::protocol::heap(m.place.local, m.controlLayout.enteredLocal(uint32_t(e & 1), l)))
          .store(mk::sched::enteredWord(e, 0));
  }
  for (uint32_t n = 0; n < m.place.nodes; ++n)
    for (uint32_t slot = 0; slot < mk::sched::kControlSlots; ++slot) set(m.controlLayout.arrival(slot, n));
  if (comm->proxy() != nullptr) comm->proxy()->startAt(target);
}

const std::vector<World> kSome = test::worlds({{1, 3}, {2, 2}, {3, 2}});

}  // namespace

TEST_CASE("what is sent is what the formula says, on every rank") {
  const World world = GENERATE(from_range(test::worlds({{2, 1}, {2, 4}, {3, 2}, {4, 2}, {5, 1}})));
  const uint32_t exchange = GENERATE(0u, MK_EXCHANGE_SWAP, MK_EXCHANGE_HOME);
  requireAll(world, [&](mkComm_t comm, int rank) {
    for (const bool fp32 : {false, true}) {
      Case c{.m = 203, .n = 264, .k = 64, .wireF32 = fp32};
      c.tune.exchange = exchange;
      c.tune.chunkTiles = 3;
      Operands o(c, world, rank, comm);
      o.reserve();
      const mkCommInfo_t before = info(comm);
      launch(comm, o);
      o.check();
      mk::sched::GemmArShape shape;
      shape.m = uint64_t(c.m);
      shape.n = uint64_t(c.n);
      shape.wireBytes = fp32 ? 4 : 2;
      shape.staged = true;
      shape.place = mk::Comm::find(comm)->place();
      mk::sched::GemmChoice choice;
      choice.exchange = exchange;
      choice.chunkTiles = 3;
      const auto plan = mk::sched::planGemmAr(shape, choice, 8);
      requireSent(comm, before, plan.netBytesSent(), plan.netMessagesSent());
      if (plan.netBytesSent() == 0) throw std::string("nothing to send: the test tests nothing");
    }
  });
}

// Rows that do not divide by the ranks, and so few that the last ranks get none; ranks placed by block and in rotation.
TEST_CASE("what a reduce-scatter sends is what the formula says, on every rank") {
  const World world = GENERATE(from_range(test::worlds({{2, 1}, {2, 4}, {3, 2}, {5, 1}})));
  const bool rotated = GENERATE(false, true);
  const auto errors = test::runWorld(
      world,
      [&](mkComm_t comm, int rank) {
        for (const int64_t m : {203, 5, 1}) {
          Case c{.op = MK_OP_GEMM_REDUCE_SCATTER, .m = m, .n = 264, .k = 64, .wireF32 = m == 5};
          c.tune.chunkTiles = 3;
          Operands o(c, world, rank, comm);
          o.reserve();
          const mkCommInfo_t before = info(comm);
          launch(comm, o);
          o.check();
          const std::shared_ptr<mk::Comm> inside = mk::Comm::find(comm);
          mk::sched::GemmRsShape shape;
          shape.m = uint64_t(m);
          shape.n = uint64_t(c.n);
          shape.wireBytes = c.wireF32 ? 4 : 2;
          shape.place = inside->place();
          shape.ranks = inside->rankMap();
          mk::sched::GemmChoice choice;
          choice.chunkTiles = 3;
          const auto plan = mk::sched::planGemmRs(shape, choice, 8);
          requireSent(comm, before, plan.netBytesSent(), plan.netMessagesSent());
          // Counted here, without the plan: the rows of the ranks with this local rank on other nodes.
          const mkCommInfo_t mine = info(comm);
          const int64_t height = (m + world.ranks() - 1) / world.ranks();
          int64_t rows = 0;
          for (int r = 0; r < world.ranks(); ++r) {
            const int node = rotated ? r % world.nodes : r / world.locals;
            const int local = rotated ? r / world.nodes : r % world.locals;
            if (node == mine.node || local != mine.localRank) continue;
            rows += std::min(m, (r + 1) * height) - std::min(m, r * height);
          }
          const uint64_t bytes = uint64_t(rows * c.n) * shape.wireBytes;
          if (mine.netBytesSent - before.netBytesSent != bytes)
            throw "sent " + std::to_string(mine.netBytesSent - before.netBytesSent) + " bytes, not " +
                std::to_string(bytes);
        }
      },
      [&](mkConfig_t& config, int rank) {
        static thread_local std::string host;
        host = "rotated-node-" + std::to_string(rank % world.nodes);
        if (rotated) config.hostId = host.c_str();
      });
  INFO(world.nodes << " nodes x " << world.locals << "\n" << joined(errors));
  CHECK(errors.empty());
}

TEST_CASE("ranks of a node may have any numbers") {
  const World world{2, 3};
  const auto errors = test::runWorld(
      world,
      [&](mkComm_t comm, int rank) {
        for (const int64_t m : {170, 4}) {
          test::runCase({.op = MK_OP_GEMM_REDUCE_SCATTER, .m = m, .n = 72, .k = 96, .bias = true}, world, rank, comm);
          test::runCase({.m = m, .n = 72, .k = 96, .bias = true}, world, rank, comm);
        }
      },
      [](mkConfig_t& config, int rank) { config.hostId = rank == 0 || rank == 3 || rank == 4 ? "one" : "other"; });
  INFO(joined(errors));
  CHECK(errors.empty());
}

TEST_CASE("all ranks hold the same bits, run after run") {
  const World world = GENERATE(from_range(kSome));
  const bool scatter = GENERATE(false, true);
  const bool window = GENERATE(false, true);
  test::BitCompare first(world.ranks()), second(world.ranks());
  requireAll(world, [&](mkComm_t comm, int rank) {
    const int op = scatter ? MK_OP_GEMM_REDUCE_SCATTER : MK_OP_GEMM_ALL_REDUCE;
    Operands o({.op = op, .m = 150, .n = 136, .k = 192, .window = window, .bias = true, .alpha = 0.7f}, world, rank,
               comm);
    o.reserve();
    launch(comm, o);
    first.put(rank, o.outputBits());
    o.refill(9);
    launch(comm, o);
    o.refill(1);
    launch(comm, o);
    o.check();
    second.put(rank, o.outputBits());
  });
  CHECK(first.equal() == !scatter);
  CHECK(second.equal() == !scatter);
  CHECK(first.same(second));
}

TEST_CASE("a large shape, the epoch advanced far, the large shape again") {
  const World world = GENERATE(from_range(kSome));
  // Also by a multiple of 2^32 and of 4: stale flags then agree in their low bits with the new epoch.
  const uint64_t by = GENERATE(uint64_t{4}, uint64_t{1} << 32, (uint64_t{1} << 32) + 2, (uint64_t{5} << 32) - 1);
  std::barrier sync(world.ranks());
  requireAll(world, [&](mkComm_t comm, int rank) {
    const int op = by == 4 ? MK_OP_GEMM_ALL_REDUCE : MK_OP_GEMM_REDUCE_SCATTER;
    Operands large({.op = op, .m = 330, .n = 264, .k = 64}, world, rank, comm);
    Operands small({.m = 20, .n = 24, .k = 64}, world, rank, comm);
    large.reserve();
    launch(comm, large);
    large.check();
    expect(mkCommFinalize(comm), "finalize", comm);
    // Notifications that have arrived belong to the old epoch: the proxies must have read them.
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    sync.arrive_and_wait();
    jumpTo(comm, info(comm).nextEpoch - 1 + by);
    sync.arrive_and_wait();
    for (uint64_t seed = 2; seed < 5; ++seed) {
      small.refill(seed);
      launch(comm, small);
      small.check();
      large.refill(seed);
      launch(comm, large);
      large.check();
    }
  });
}

TEST_CASE("back-to-back launches with one slow rank") {
  const World world = GENERATE(from_range(kSome));
  // Rank 1 is slow at its tiles, so that the others run into the next launches while it still works on the last.
  mk::emu::hook().store([](int rank, uint64_t epoch, mk::emu::Point point, uint64_t) {
    if (rank == 1 && point == mk::emu::Point::multiply && epoch % 3 != 0)
      std::this_thread::sleep_for(std::chrono::microseconds(300));
  });
  requireAll(world, [&](mkComm_t comm, int rank) {
    mkStream_t stream = nullptr;
    expect(mkCpuStreamCreate(&stream), "stream");
    {
      std::vector<std::unique_ptr<Operands>> sets;
      for (int i = 0; i < 12; ++i) {
        Case c{.m = 130 - 9 * (i % 3), .n = 72 + 64 * (i % 2), .k = 48, .window = i % 4 == 1};
        c.op = i % 5 < 2 ? MK_OP_GEMM_REDUCE_SCATTER : MK_OP_GEMM_ALL_REDUCE;
        c.seed = uint64_t(i) + 1;
        sets.push_back(std::make_unique<Operands>(c, world, rank, comm));
        sets.back()->reserve();
      }
      for (int round = 0; round < 2; ++round) {
        for (const auto& o : sets) launch(comm, *o, stream);
        expect(mkCpuStreamSynchronize(stream), "synchronize");
        mkResult_t async = mkSuccess;
        expect(mkCommGetAsyncError(comm, &async), "async");
        expect(async, "asynchronous", comm);
        for (const auto& o : sets) o->check();
        for (const auto& o : sets) o->refill(uint64_t(100 + round));
      }
    }
    expect(mkCpuStreamDestroy(stream), "stream");
  });
  mk::emu::hook().store(nullptr);
}

TEST_CASE("a peer that is slow for longer than the deadline, but gets on, is not taken for stalled") {
  // Its output is announced once, at its end, after far longer than the deadline; each of its tiles takes far less.
  mk::emu::hook().store([](int rank, uint64_t, mk::emu::Point point, uint64_t) {
    if (rank == 1 && point == mk::emu::Point::multiply) std::this_thread::sleep_for(std::chrono::milliseconds(150));
  });
  const World world{1, 2};
  constexpr int kDeadlineMs = 2000;  // so long that a busy machine does not hold a thread up for it
  const auto errors = test::runWorld(
      world,
      [&](mkComm_t comm, int rank) {
        Operands o({.m = 256, .n = 512, .k = 32, .window = true}, world, rank, comm);
        o.reserve();
        const auto start = std::chrono::steady_clock::now();
        launch(comm, o);
        const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
        if (!test::kBrief && took.count() < 1.5 * kDeadlineMs)  // agents that are threads are slow side by side
          throw "took " + std::to_string(took.count()) + " ms: too short to test anything";
        o.check();
      },
      [](mkConfig_t& config, int) { config.timeoutMs = kDeadlineMs; });
  mk::emu::hook().store(nullptr);
  INFO(joined(errors));
  CHECK(errors.empty());
}

TEST_CASE("a deadline that has passed comes with what every rank's proxy has counted") {
  if (const char* const direct = std::getenv("MKERNEL_DIRECT_POST"); direct != nullptr && direct[0] == '1')
    MK_SKIP_TEST(
        "agents that write the card's queues pass neither the ring, where one is held, nor the proxy's counts");
  const char* const contract = std::getenv("MKERNEL_LOOPBACK_CONTRACT");
  // Else the flags change without the proxy.
  const bool notified =
      contract != nullptr && std::string(contract) == "completion" && std::getenv("MKERNEL_NET_STAGING") == nullptr;
  static std::atomic<bool> held{true};
  held.store(true);
  // Rank 1 has entered, and sends no chunk.
  mk::emu::hook().store([](int rank, uint64_t, mk::emu::Point point, uint64_t slot) {
    if (rank != 1 || point != mk::emu::Point::post || slot < mk::sched::kControlSlots) return;
    for (int i = 0; i < 60000 && held.load(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  const World world{2, 1};
  const auto errors = test::runWorld(
      world,
      [&](mkComm_t comm, int rank) {
        const Operands o({.m = 64, .n = 64, .k = 64}, world, rank, comm);
        const mkResult_t result = o.launch();
        if (rank == 0) held.store(false);
        expect(result, "launch", comm);
      },
      [](mkConfig_t& config, int) { config.timeoutMs = 500; });
  mk::emu::hook().store(nullptr);
  INFO(joined(errors));
  REQUIRE(errors.size() == 2);
  for (const std::string& text : errors) {
    unsigned long long posted = 0, taken = 0, completed = 0, batches = 0, payload = 0, arrivals = 0, round = 0;
    const size_t account = text.find("commands: ");
    REQUIRE(account != std::string::npos);
    REQUIRE(std::sscanf(text.c_str() + account,
                        "commands: %llu posted, %llu taken, %llu completed; %llu batches, %llu payload messages; %llu "
                        "arrivals notified; longest round %llu ms; unfinished:",
                        &posted, &taken, &completed, &batches, &payload, &arrivals, &round) == 7);
    // By the words with which both have entered.
    CHECK(taken > 0);
    CHECK(taken <= posted);
    CHECK(batches > 0);
    if (notified) CHECK(arrivals > 0);
    CHECK(text.find("; a sleeping thread was held up for at most ") > account);
  }
}

TEST_CASE("the longest time for which a thread was held up is seen") {
  if (test::kSanitized) MK_SKIP_TEST("the sanitizers do not like the fork");
  int answer[2];
  REQUIRE(pipe(answer) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const test::LongestGap gap;
    int64_t seen = 0;
    if (write(answer[1], &seen, sizeof(seen)) != sizeof(seen)) _exit(1);
    for (int i = 0; i < 1000 && gap.milliseconds() < 500; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    seen = gap.milliseconds();
    _exit(write(answer[1], &seen, sizeof(seen)) == sizeof(seen) ? 0 : 1);
  }
  int64_t seen = 0;
  CHECK(read(answer[0], &seen, sizeof(seen)) == sizeof(seen));  // it looks
  kill(child, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  kill(child, SIGCONT);
  CHECK(read(answer[0], &seen, sizeof(seen)) == sizeof(seen));
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  for (const int fd : answer) close(fd);
  CHECK(seen >= 500);
}

TEST_CASE("the heap grows between launches, and a shape too large for it is refused") {
  const World world = GENERATE(from_range(kSome));
  requireAll(world, [&](mkComm_t comm, int rank) {
    Operands small({.m = 64, .n = 64, .k = 32}, world, rank, comm);
    launch(comm, small);
    small.check();
    // Larger than the default reservation.
    Operands large({.m = 2000, .n = 1600, .k = 8}, world, rank, comm);
    expect(large.launch(), "too large", nullptr, mkErrorNotReserved);
    const uint64_t before = info(comm).heapBytes;
    large.reserve();
    if (info(comm).heapBytes <= before) throw std::string("the heap has not grown");
    expect(mkCommReserve(comm, 1), "reserve less", comm);
    launch(comm, large);
    large.check();
    small.refill(5);
    launch(comm, small);
    small.check();
  });
}

TEST_CASE("soak: a stream of mixed shapes") {
  const char* longRun = std::getenv("MKERNEL_TEST_LONG");
  const int operations = longRun != nullptr ? 10000 : test::kBrief ? 60 : 500;
  const World world{2, 2};
  requireAll(world, [&](mkComm_t comm, int rank) {
    std::mt19937_64 random(7);  // the same choices on every rank
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < operations; ++i) {
      Case c;
      c.op = below(2) == 0 ? MK_OP_GEMM_REDUCE_SCATTER : MK_OP_GEMM_ALL_REDUCE;
      c.m = below(4) == 0 ? below(3) : below(140);
      c.n = 8 * below(22);
      c.k = 8 * below(12);
      c.in = below(3) == 0 ? mkFloat16 : mkBfloat16;
      c.out = below(4) == 0 ? mkFloat32 : c.in;
      c.wireF32 = below(4) == 0;
      c.transposed = below(2) == 0;
      c.window = below(8) == 0 && c.m > 0 && c.n > 0;
      c.bias = below(3) == 0;
      c.alpha = below(3) == 0 ? 0.5f : 1.0f;
      c.beta = below(4) == 0 ? 0.75f : 0.0f;
      c.padding = 8 * below(2);
      c.seed = random();
      c.tune.chunkTiles = static_cast<uint32_t>(below(4));
      c.tune.exchange = c.op == MK_OP_GEMM_ALL_REDUCE ? static_cast<uint32_t>(below(3)) : 0;
      c.activation = static_cast<uint32_t>(below(8));  // more often none
      if (c.activation > MK_ACTIVATION_SILU) c.activation = 0;
      c.tune.tileM = 16 * static_cast<uint32_t>(below(4));
      c.tune.receiveAgents = static_cast<uint32_t>(below(3));
      test::runCase(c, world, rank, comm);
      if (rank == 0 && (i + 1) % (operations / 10) == 0) {
        std::printf("soak: %d of %d operations, %.0f s\n", i + 1, operations,
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        std::fflush(stdout);
      }
    }
  });
}
