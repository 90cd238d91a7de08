// Sizes that overflow, failures that arrive at awkward moments, and ranks that leave: what must not be taken for success, nor
// for a fault.
#include <atomic>
#include <chrono>
#include <thread>

#include "emu/hooks.h"
#include "ops/world.h"
#include "support/catch_compat.h"

using test::Case;
using test::expect;
using test::Operands;
using test::World;

namespace {

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void requireAll(const World& world, const std::function<void(mkComm_t, int)>& body,
                const std::function<void(mkConfig_t&, int)>& configure = {}) {
  const auto errors = test::runWorld(world, body, configure);
  std::string all;
  for (const auto& e : errors) all += e + "\n";
  INFO(world.nodes << " nodes x " << world.locals << "\n" << all);
  REQUIRE(errors.empty());
}

mkResult_t asyncError(mkComm_t comm) {
  mkResult_t async = mkSuccess;
  expect(mkCommGetAsyncError(comm, &async), "async");
  return async;
}

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
  const World world = GENERATE(World{1, 1}, World{2, 1}, World{1, 2});
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

TEST_CASE("an operation leaves when it is revoked, also where it waits for nobody") {
  const World world = GENERATE(World{1, 1}, World{1, 2}, World{2, 1});
  const SlowTiles slow(0, 20000);  // 400 tiles of 20 ms on rank 0
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
    if (secondsSince(start) > 2) throw "the operation took " + std::to_string(secondsSince(start)) + " s to leave";
    for (int i = 0; i < 2000 && asyncError(comm) == mkSuccess; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (asyncError(comm) != (rank == 0 ? mkErrorRevoked : mkErrorRemote))
      throw std::string("error ") + mkGetLastError(comm);
    expect(mkCpuStreamDestroy(stream), "stream");
  });
}

TEST_CASE("a rank that destroys its communicator in order is no fault to the others") {
  const World world = GENERATE(World{2, 1}, World{3, 1}, World{2, 2});
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
