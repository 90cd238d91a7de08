// Sizes that overflow, failures that arrive at awkward moments, and ranks that leave: what must not be taken for success, nor
// for a fault.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "emu/hooks.h"
#include "ops/require.h"
#include "ops/world.h"
#include "support/catch_compat.h"

using test::asyncError;
using test::Case;
using test::expect;
using test::Operands;
using test::requireAll;
using test::World;

namespace {

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::atomic<int> sleepUs{0};
std::atomic<int> sleepingRank{0};
std::atomic<int> multiplied{0};
struct SlowTiles {
  SlowTiles(int rank, int us) {
    sleepingRank = rank;
    sleepUs = us;
    multiplied = 0;
    mk::emu::hook().store([](int r, uint64_t, mk::emu::Point point, uint64_t) {
      if (point != mk::emu::Point::multiply || r != sleepingRank) return;
      ++multiplied;
      std::this_thread::sleep_for(std::chrono::microseconds(sleepUs));
    });
  }
  ~SlowTiles() { mk::emu::hook().store(nullptr); }
};

}  // namespace

TEST_CASE("a reservation that overflows is refused on every rank, and the communicator lives on") {
  const World world = GENERATE(from_range(test::worlds({World{1, 1}, World{2, 1}, World{1, 2}})));
  requireAll(world, [&](mkComm_t comm, int rank) {
    for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 4096, size_t{1} << 62})
      expect(mkCommReserve(comm, bytes), "reserve", nullptr, mkErrorInvalidArgument);
    test::runCase({.m = 40, .n = 40, .k = 16}, world, rank, comm);
  });
}

TEST_CASE("a tensor whose extent overflows 64 bits does not fit its window") {
  requireAll({1, 1}, [&](mkComm_t comm, int) {
    void* memory = nullptr;
    expect(mkMemAlloc(&memory, 1 << 16), "mkMemAlloc");
    mkWindow_t window = nullptr;
    expect(mkCommWindowRegister(comm, memory, 1 << 16, &window), "register", comm);
    mkGemmAllReduceArgs_t x;
    MK_INIT(&x, MK_ID_GEMM_ALL_REDUCE_ARGS);
    // (M - 1) * stride * 2 bytes = 2^64 exactly.
    const int64_t m = (int64_t{1} << 23) + 1, n = 8;
    x.a.dtype = x.b.dtype = x.c.dtype = mkBfloat16;
    x.a.ndim = x.b.ndim = x.c.ndim = 2;
    x.a.dims[0] = m;
    x.b.dims[1] = n;
    x.c.dims[0] = m;
    x.c.dims[1] = n;
    x.c.window = window;
    x.c.strides[0] = int64_t{1} << 40;
    x.c.strides[1] = 1;
    expect(mkOpCheck(comm, MK_OP_GEMM_ALL_REDUCE, &x), "check", nullptr, mkErrorInvalidArgument);
    expect(mkCommWindowDeregister(comm, window), "deregister");
    expect(mkMemFree(memory), "free");
  });
}

TEST_CASE("a result too large to be numbered is refused") {
  requireAll({1, 1}, [&](mkComm_t comm, int) {
    alignas(16) static char dummy[64];
    mkGemmAllReduceArgs_t x;
    MK_INIT(&x, MK_ID_GEMM_ALL_REDUCE_ARGS);
    const int64_t m = (int64_t{1} << 31) - 1, n = (int64_t{1} << 31) - 8;
    x.a.dtype = x.b.dtype = x.c.dtype = mkBfloat16;
    x.a.ndim = x.b.ndim = x.c.ndim = 2;
    x.a.dims[0] = m;
    x.b.dims[1] = n;
    x.c.dims[0] = m;
    x.c.dims[1] = n;
    x.c.data = dummy;
    size_t bytes = 0;
    expect(mkOpWorkspaceSize(comm, MK_OP_GEMM_ALL_REDUCE, &x, &bytes), "workspace", nullptr, mkErrorInvalidArgument);
  });
}

TEST_CASE("an operation that needs more agents than config.maxSMs leaves it is refused, and one that does not is not") {
  for (const World world : {World{1, 1}, World{2, 1}}) {
    for (const int op : {MK_OP_GEMM_ALL_REDUCE, MK_OP_GEMM_REDUCE_SCATTER}) {
      const Case plain{.op = op, .m = 64, .n = 72, .k = 32};
      std::atomic<uint32_t> asked{0};
      requireAll(world, [&](mkComm_t comm, int rank) { asked = Operands(plain, world, rank, comm).tune().minSMs; });
      const uint32_t needed = asked;
      INFO(world.nodes << " nodes, operation " << op << ", " << needed << " agents");
      REQUIRE(needed >= (world.nodes > 1 ? 4u : 2u));
      for (const uint32_t most : {needed - 1, needed}) {
        const auto errors = test::runWorld(
            world,
            [&](mkComm_t comm, int rank) {
              Case c = plain;
              if (most == needed) {
                test::runCase(c, world, rank, comm);
                c.tune.computeAgents = 2;  // not beyond it by a wish of the operation's own either
              }
              const Operands o(c, world, rank, comm);
              expect(o.launch(), "launch", nullptr, mkErrorInvalidArgument);
              const std::string text = mkGetLastError(nullptr);
              const std::string due =
                  most == needed ? std::to_string(needed + 1) + " agents in all; legal: up to " + std::to_string(needed)
                                 : "needs " + std::to_string(needed) + " agents here; config.maxSMs leaves it " +
                                       std::to_string(needed - 1);
              if (text.find(due) == std::string::npos) throw "\"" + text + "\" does not say \"" + due + "\"";
            },
            [&](mkConfig_t& config, int) { config.maxSMs = most; });
        CHECK(errors == std::vector<std::string>{});
      }
    }
  }
}

TEST_CASE("an operation leaves when it is revoked, also where it waits for nobody") {
  const World world = GENERATE(from_range(test::worlds({World{1, 1}, World{1, 2}, World{2, 1}})));
  const SlowTiles slow(0, 20000);  // 400 tiles of 20 ms on rank 0: 8 s
  requireAll(world, [&](mkComm_t comm, int rank) {
    mkStream_t stream = nullptr;
    expect(mkCpuStreamCreate(&stream), "stream");
    Operands o({.m = 1280, .n = 1280, .k = 8}, world, rank, comm);
    const mkGemmAllReduceArgs_t args = o.args();
    size_t bytes = 0;
    expect(mkOpWorkspaceSize(comm, MK_OP_GEMM_ALL_REDUCE, &args, &bytes), "workspace");
    expect(mkCommReserve(comm, bytes), "reserve", comm);
    expect(mkGemmAllReduce(comm, &args, stream), "launch");
    while (multiplied < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto start = Clock::now();
    if (rank == 0) expect(mkCommRevoke(comm), "revoke");
    expect(mkCpuStreamSynchronize(stream), "synchronize");
    if (secondsSince(start) > 4) throw "the operation took " + std::to_string(secondsSince(start)) + " s to leave";
    for (int i = 0; i < 20000 && asyncError(comm) == mkSuccess; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (asyncError(comm) != (rank == 0 ? mkErrorRevoked : mkErrorRemote))
      throw std::string("error ") + mkGetLastError(comm);
    expect(mkCpuStreamDestroy(stream), "stream");
  });
}

TEST_CASE("a rank that destroys its communicator in order is no fault to the others") {
  const World world = GENERATE(from_range(test::worlds({World{2, 1}, World{3, 1}, World{2, 2}})));
  requireAll(world, [&](mkComm_t comm, int rank) {
    test::runCase({.m = 40, .n = 40, .k = 16}, world, rank, comm);
    if (rank == 1) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    expect(asyncError(comm), "asynchronous error", comm);
  });
}

TEST_CASE("differing arguments are named, however many launches are queued behind them") {
  const World world{1, 2};
  const auto errors = test::runWorld(world, [&](mkComm_t comm, int rank) {
    mkStream_t stream = nullptr;
    expect(mkCpuStreamCreate(&stream), "stream");
    std::vector<std::unique_ptr<Operands>> sets;
    for (int i = 0; i < 80; ++i) {
      Case c{.m = 16 + i, .n = 16, .k = 16};
      if (i == 0 && rank == 1) c.n = 24;
      sets.push_back(std::make_unique<Operands>(c, world, rank, comm));
    }
    for (const auto& o : sets) {
      const mkGemmAllReduceArgs_t args = o->args();
      const mkResult_t r = mkGemmAllReduce(comm, &args, stream);
      if (r != mkSuccess && r != mkErrorInvalidUsage) expect(r, "launch");
    }
    expect(mkCpuStreamDestroy(stream), "stream");
    if (asyncError(comm) != mkErrorInvalidUsage) throw std::string("no error");
    const std::string text = mkGetLastError(comm);
    if (text.find("N=16") == std::string::npos || text.find("N=24") == std::string::npos) throw text;
  });
  INFO((errors.empty() ? std::string() : errors[0]));
  CHECK(errors.empty());
}

TEST_CASE("two communicators over the same ranks, in opposite orders on two streams") {
  const World world = GENERATE(from_range(test::worlds({World{1, 2}, World{2, 2}})));
  mkUniqueId_t other;
  REQUIRE(mkGetUniqueId(&other) == mkSuccess);
  requireAll(world, [&](mkComm_t first, int rank) {
    const std::string host = "test-node-" + std::to_string(rank / world.locals);
    mkConfig_t config;
    MK_INIT(&config, MK_ID_CONFIG);
    config.hostId = host.c_str();
    mkComm_t comms[2] = {first, nullptr};
    expect(mkCommInitRankConfig(&comms[1], world.ranks(), other, rank, &config), "second communicator");
    mkStream_t streams[2] = {};
    for (mkStream_t& s : streams) expect(mkCpuStreamCreate(&s), "stream");
    {
      Operands a({.m = 100, .n = 136, .k = 64, .window = true, .seed = 3}, world, rank, comms[0]);
      Operands b({.m = 70, .n = 72, .k = 64, .seed = 4}, world, rank, comms[1]);
      const Operands* const both[2] = {&a, &b};
      for (int round = 0; round < 20; ++round) {
        for (int i = 0; i < 2; ++i) {
          const int which = (rank + round / 4 + i) % 2;
          const mkGemmAllReduceArgs_t args = both[which]->args();
          expect(mkGemmAllReduce(comms[which], &args, streams[which]), "launch");
        }
      }
      for (const mkStream_t s : streams) expect(mkCpuStreamDestroy(s), "stream");
      for (const mkComm_t c : comms) expect(asyncError(c), "asynchronous error", c);
      a.check();
      b.check();
    }
    expect(mkCommDestroy(comms[1]), "destroy the second");
  });
}

TEST_CASE("infinities and not-a-numbers come out with the same bits on all ranks") {
  const World world = GENERATE(from_range(test::worlds({World{1, 3}, World{2, 2}, World{3, 1}})));
  const uint32_t exchange = GENERATE(MK_EXCHANGE_SWAP, MK_EXCHANGE_HOME);
  const bool fp32 = GENERATE(false, true);
  test::BitCompare bits(world.ranks());
  requireAll(world, [&](mkComm_t comm, int rank) {
    Case c{.m = 97, .n = 72, .k = 96, .out = fp32 ? mkFloat32 : mkBfloat16, .bias = true, .alpha = 0.5f};
    c.tune.exchange = exchange;
    Operands o(c, world, rank, comm);
    const mkGemmAllReduceArgs_t args = o.args();
    // Rows of infinities of either sign (which meet as inf - inf), of NaNs with a payload of this rank's own, of overflow.
    auto* a = static_cast<uint16_t*>(args.a.data);
    const int64_t k = args.a.dims[1];
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t d = 0; d < k; ++d) {
        uint16_t& x = a[i * k + d];
        if (i % 7 == rank) x = 0x7f80;
        if (i % 7 == rank + 1) x = 0xff80;
        if (i % 5 == 1 && d == rank) x = static_cast<uint16_t>((rank % 2 == 0 ? 0x7fc1 : 0xffc1) + rank);
        if (i % 5 == 2) x = 0x7f7f;
      }
    }
    expect(mkGemmAllReduce(comm, &args, nullptr), "mkGemmAllReduce", comm);
    bits.put(rank, o.outputBits());
  });
  CHECK(bits.equal());
}

TEST_CASE("a forked child is told that streams and communicators are its parent's") {
  requireAll({1, 1}, [&](mkComm_t comm, int rank) {
    mkStream_t stream = nullptr;
    expect(mkCpuStreamCreate(&stream), "stream");
    const pid_t child = fork();
    if (child == 0) {
      const bool refused = mkCpuStreamSynchronize(stream) == mkErrorInvalidArgument &&
                           mkCpuStreamDestroy(stream) == mkErrorInvalidArgument &&
                           mkCommFinalize(comm) == mkErrorInvalidUsage && mkCommAbort(comm) == mkErrorInvalidUsage;
      _exit(refused ? 0 : 1);
    }
    int status = -1;
    for (int i = 0; i < 30000 && waitpid(child, &status, WNOHANG) == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      kill(child, SIGKILL);
      throw std::string("the child was not refused");
    }
    test::runCase({.m = 40, .n = 40, .k = 16}, {1, 1}, rank, comm, stream);
    expect(mkCpuStreamDestroy(stream), "stream");
  });
}
