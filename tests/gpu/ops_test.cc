// Whole operations through the C interface: one rank, two ranks of a node, two emulated nodes of one rank.
#include <memory>

#include "gpu/crews.h"
#include "gpu/device.h"
#include "gpu/job.h"
#include "process/crew.h"
#include "support/catch_compat.h"

using test::allGood;
using test::Case;
using test::Crew;
using test::expect;
using test::requireCrew;
using test::World;

namespace {

std::vector<Case> cases(bool network) {
  std::vector<Case> all;
  const auto add = [&](Case c) { all.push_back(c); };
  for (const bool window : {true, false}) {
    add({.m = 512, .n = 512, .k = 256, .window = window});
    add({.m = 1000, .n = 776, .k = 528, .window = window, .bias = true, .alpha = 0.5f, .beta = -1});
    add({.m = 257, .n = 136, .k = 64, .in = mkFloat16, .out = mkFloat16, .transposed = true, .window = window});
    add({.m = 300, .n = 264, .k = 200, .out = mkFloat32, .window = window, .beta = 2});
    add({.m = 255, .n = 520, .k = 128, .wireF32 = true, .window = window, .padding = 8});
    add({.m = 1, .n = 8, .k = 8, .window = window});
    add({.m = 130, .n = 128, .k = 0, .window = window, .beta = 1});
    add({.m = 0, .n = 128, .k = 64, .window = window});
  }
  // Tiles of the product transposed, by choice and by name.
  add({.m = 40, .n = 520, .k = 328, .transposed = true, .window = true});
  Case turned{.m = 64, .n = 264, .k = 72, .in = mkFloat16, .out = mkFloat16, .transposed = true, .window = true};
  if (!network) {
    turned.tune.tileM = 64;
    turned.tune.tileN = 128;
  }
  add(turned);
  // A B too large for the cache.
  if (!network) add({.m = 8, .n = 8712, .k = 8208, .transposed = true, .window = true});
  Case tuned{.m = 700, .n = 600, .k = 96, .window = true};
  tuned.tune.tileN = 128;
  tuned.tune.computeAgents = 6;
  if (network) {
    tuned.tune.chunkTiles = 1;
    tuned.tune.exchange = MK_EXCHANGE_HOME;
  }
  add(tuned);
  return all;
}

}  // namespace

MK_ROLE(cases) {
  mkComm_t comm = rank.join();
  cudaStream_t stream = nullptr;
  test::cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  rank.attempt("cases", [&] {
    uint64_t seed = 0;
    for (int round = 0; round < 2; ++round) {
      for (Case c : cases(rank.world().nodes > 1)) {
        c.seed = ++seed;
        test::runCase(c, rank.world(), rank.rank(), comm, seed % 3 == 0 ? test::plainStream() : stream);
      }
    }
    if (rank.world().nodes > 1) return;
    const Case few{.m = 64, .n = 264, .k = 72, .transposed = true, .window = true};
    const mkTune_t t = test::Job(few, rank.world(), rank.rank(), comm).tune();
    if (t.tileM != 64 || t.tileN != 128)
      throw "of few rows tiles are " + std::to_string(t.tileM) + "x" + std::to_string(t.tileN);
  });
  mkCommInfo_t info;
  MK_INIT(&info, MK_ID_COMM_INFO);
  expect(mkCommQuery(comm, &info), "query");
  if (std::string(info.platform) != "cuda" || info.device != rank.rank() % test::deviceCount())
    throw std::string("not on its device");
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("one rank", "[ops]") {
  MK_NEED_GPUS(1);
  Crew crew("cases", {1, 1});
  const bool finished = crew.finish(60);
  INFO(crew.story());
  REQUIRE(finished);
  allGood(crew, {1, 1});
}

TEST_CASE("two ranks", "[ops]") {
  MK_NEED_GPUS(2);
  const World world = GENERATE(World{1, 2}, World{2, 1});
  const std::string contract = GENERATE("ordered", "completion");
  const std::string start = GENERATE("0", "4294967290");
  if (world.nodes == 1 && contract == "completion") return;
  Crew crew("cases", world, {}, {"MKERNEL_LOOPBACK_CONTRACT=" + contract, "MKERNEL_EPOCH_START=" + start});
  const bool finished = crew.finish(90);
  INFO(world.nodes << " nodes x " << world.locals << ", " << contract << ", from epoch " << start << "\n"
                   << crew.story());
  REQUIRE(finished);
  allGood(crew, world);
}

// ---- Beside others ---------------------------------------------------------------------------------------------------

MK_ROLE(beside) {
  mkComm_t comm = rank.join();
  cudaStream_t stream = nullptr, other = nullptr;
  test::cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  test::cuda(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "stream");
  int* stop = nullptr;
  test::cuda(cudaHostAlloc(reinterpret_cast<void**>(&stop), sizeof(int), cudaHostAllocMapped), "pinned memory");
  *stop = 0;
  rank.attempt("cases", [&] {
    Case c{.m = 1024, .n = 1024, .k = 512, .window = true};
    if (rank.option("tiles") == "few") c = {.m = 64, .n = 264, .k = 8192, .transposed = true};
    c.op = test::operationOf(rank.option("op"));
    test::Job o(c, rank.world(), rank.rank(), comm);
    o.reserve();
    const mkTune_t tune = o.tune();
    // Clusters of two lie within a part of the GPU, so one more pair of SMs may be needed where those left are scattered.
    const int left = static_cast<int>(tune.minSMs) + std::stoi(rank.option("spare"));
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      o.refill(seed);
      *stop = 0;
      test::occupy(test::smCount() - left, stop, other);
      expect(o.launch(stream), "launch", comm);
      test::synchronize(stream);  // while the other kernel still runs
      const bool still = cudaStreamQuery(other) == cudaErrorNotReady;
      *stop = 1;
      test::synchronize(other);
      if (!still) throw std::string("the other kernel had ended");
      mkResult_t async = mkSuccess;
      expect(mkCommGetAsyncError(comm, &async), "async");
      expect(async, "asynchronous", comm);
      o.check();
    }
  });
  *stop = 1;
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("progress with another kernel on all SMs but those that suffice", "[ops]") {
  MK_NEED_GPUS(2);
  if (test::oneGpu() != test::OneGpu::no) MK_SKIP_TEST("needs two GPUs: each rank's other kernel has most of its GPU");
  const World world = GENERATE(World{1, 2}, World{2, 1});
  const std::string op = GENERATE("reduce", "scatter", "gather");
  Crew crew("beside", world, {{"spare", "6"}, {"op", op}, {"tiles", "many"}});
  const bool finished = crew.finish(60);
  INFO(op << ", " << world.nodes << " nodes x " << world.locals << "\n" << crew.story());
  REQUIRE(finished);
  allGood(crew, world);
}

// Two dozen clusters would have a part of a tile each, and three or four are resident.
TEST_CASE("progress of tiles that clusters share where few are resident", "[ops]") {
  MK_NEED_GPUS(1);
  Crew crew("beside", {1, 1}, {{"spare", "6"}, {"op", "gather"}, {"tiles", "few"}});
  const bool finished = crew.finish(60);
  INFO(crew.story());
  REQUIRE(finished);
  allGood(crew, {1, 1});
}

namespace {

// Of AllGather+GEMM, few tiles, that clusters share.
Case smallOf(const test::Rank& rank) {
  if (rank.option("op") == "reduce") return {.m = 600, .n = 520, .k = 128};
  return {.op = MK_OP_ALL_GATHER_GEMM, .m = 64, .n = 136, .k = 4096, .transposed = true};
}

}  // namespace

MK_ROLE(several) {
  mkComm_t comms[2] = {};
  cudaStream_t streams[2] = {};
  for (int i = 0; i < 2; ++i) {
    if (rank.join(std::to_string(i), rank.world(), rank.rank(), &comms[i], [](mkConfig_t& c) {
          c.maxSMs = test::oneGpu() == test::OneGpu::no ? 44 : test::smsOfRank(2);
        }) != mkSuccess)
      return;
    test::cuda(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), "stream");
  }
  rank.attempt("cases", [&] {
    for (int round = 0; round < 20; ++round) {
      std::unique_ptr<test::Job> jobs[2];
      for (int i = 0; i < 2; ++i) {
        Case c = smallOf(rank);
        c.window = round % 2 == 0;
        c.seed = static_cast<uint64_t>(2 * round + i) + 1;
        jobs[i] = std::make_unique<test::Job>(c, rank.world(), rank.rank(), comms[i]);
        jobs[i]->reserve();
      }
      for (int i = 0; i < 2; ++i) {  // in opposite order on neighbouring ranks
        const int which = (i + rank.rank() + round) % 2;
        expect(jobs[which]->launch(streams[which]), "launch", comms[which]);
      }
      for (int i = 0; i < 2; ++i) {
        test::synchronize(streams[i]);
        mkResult_t async = mkSuccess;
        expect(mkCommGetAsyncError(comms[i], &async), "async");
        expect(async, "asynchronous", comms[i]);
        jobs[i]->check();
      }
    }
  });
  for (mkComm_t comm : comms) rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("two communicators share the GPUs, in opposite order", "[ops]") {
  MK_NEED_GPUS(2);
  const World world = GENERATE(World{1, 2}, World{2, 1});
  const std::string op = GENERATE("reduce", "gather");
  if (op == "gather" && world.nodes > 1) return;  // whose tiles are not shared
  requireCrew("several", world, {{"op", op}}, {}, 60);
}

MK_ROLE(streams) {
  mkComm_t comm = rank.join();
  cudaStream_t streams[3] = {};
  for (cudaStream_t& s : streams) test::cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "stream");
  rank.attempt("cases", [&] {
    // Launched on one stream after the other without a wait between: they run in the order of the calls.
    std::vector<std::unique_ptr<test::Job>> jobs;
    for (int i = 0; i < 12; ++i) {
      Case c = smallOf(rank);
      c.window = true;
      c.seed = static_cast<uint64_t>(i) + 1;
      jobs.push_back(std::make_unique<test::Job>(c, rank.world(), rank.rank(), comm));
    }
    for (size_t i = 0; i < jobs.size(); ++i)
      expect(jobs[i]->launch(i % 4 == 3 ? test::plainStream() : streams[i % 4]), "launch", comm);
    for (cudaStream_t s : streams) test::synchronize(s);
    test::synchronize(test::plainStream());
    mkResult_t async = mkSuccess;
    expect(mkCommGetAsyncError(comm, &async), "async");
    expect(async, "asynchronous", comm);
    for (const auto& job : jobs) job->check();
  });
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("launches on several streams run in the order of the calls", "[ops]") {
  MK_NEED_GPUS(2);
  requireCrew("streams", {1, 2}, {{"op", GENERATE("reduce", "gather")}}, {}, 60);
}
