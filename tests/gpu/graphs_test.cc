// Captured operations: replayed with new inputs, mixed with launches outside a graph, the heap grown in between.
#include <memory>

#include "gpu/device.h"
#include "gpu/job.h"
#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::cuda;
using test::expect;
using test::Job;
using test::World;

namespace {

constexpr int kSets = 6;

// Inputs, and the result that a checked launch has given.
struct Set {
  void *a = nullptr, *b = nullptr, *c = nullptr;
};

void* copyOf(const std::pair<void*, size_t>& bytes, cudaStream_t stream) {
  void* const copy = test::deviceMemory->allocate(bytes.second);
  cuda(cudaMemcpyAsync(copy, bytes.first, bytes.second, cudaMemcpyDeviceToDevice, stream), "copy");
  test::synchronize(stream);
  return copy;
}

}  // namespace

MK_ROLE(replay) {
  const int replays = rank.number("replays");
  mkComm_t comm = rank.join();
  cudaStream_t stream = nullptr;
  cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  rank.attempt("graphs", [&] {
    Case c{.m = 700, .n = 520, .k = 256, .window = rank.option("window") == "1"};
    if (rank.option("tiles") == "few") c = {.m = 200, .n = 136, .k = 8192, .transposed = true, .window = c.window};
    c.op = test::operationOf(rank.option("op"));
    Job o(c, rank.world(), rank.rank(), comm);
    const size_t bytes = o.workspace();
    o.reserve();

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cuda(cudaStreamBeginCapture(stream, test::captureMode()), "capture");
    expect(o.launch(stream), "captured launch", comm);
    cuda(cudaStreamEndCapture(stream, &graph), "capture");
    cuda(cudaGraphInstantiate(&exec, graph, 0), "graph");

    std::vector<Set> sets;
    for (uint64_t seed = 1; seed <= kSets; ++seed) {
      o.refill(seed);
      if (seed % 2 == 0) {
        cuda(cudaGraphLaunch(exec, stream), "replay");
      } else {
        expect(o.launch(stream), "launch", comm);
      }
      test::synchronize(stream);
      o.check();
      sets.push_back(
          {copyOf(o.deviceBytes('a'), stream), copyOf(o.deviceBytes('b'), stream), copyOf(o.deviceBytes('c'), stream)});
    }
    unsigned long long* different = nullptr;
    different = static_cast<unsigned long long*>(test::deviceMemory->allocate(sizeof(*different)));
    cuda(cudaMemsetAsync(different, 0, sizeof(*different), stream), "memory");
    const auto [a, aBytes] = o.deviceBytes('a');
    const auto [b, bBytes] = o.deviceBytes('b');
    const auto [out, outBytes] = o.deviceBytes('c');
    for (int i = 0; i < replays; ++i) {
      const Set& set = sets[static_cast<size_t>(i * 7 % kSets)];
      cuda(cudaMemcpyAsync(a, set.a, aBytes, cudaMemcpyDeviceToDevice, stream), "inputs");
      cuda(cudaMemcpyAsync(b, set.b, bBytes, cudaMemcpyDeviceToDevice, stream), "inputs");
      cuda(cudaMemsetAsync(out, 0xff, outBytes, stream), "poison");
      if (i % 97 == 50) {
        expect(o.launch(stream), "launch", comm);
      } else {
        cuda(cudaGraphLaunch(exec, stream), "replay");
      }
      test::countDifferent(out, set.c, outBytes, different, stream);
      if (i == replays / 2) {
        test::synchronize(stream);
        expect(mkCommReserve(comm, 3 * bytes + (size_t{200} << 20)), "reserve", comm);
      }
    }
    test::synchronize(stream);
    mkResult_t async = mkSuccess;
    expect(mkCommGetAsyncError(comm, &async), "async");
    expect(async, "asynchronous", comm);
    unsigned long long count = 0;
    test::deviceMemory->download(&count, different, sizeof(count));
    if (count != 0) throw std::to_string(count) + " bytes differ from what the checked launches gave";
    mkCommInfo_t info;
    MK_INIT(&info, MK_ID_COMM_INFO);
    expect(mkCommQuery(comm, &info), "query");
    if (info.nextEpoch != uint64_t(kSets + replays) + 1) throw "the next epoch is " + std::to_string(info.nextEpoch);
    for (const Set& s : sets)
      for (void* p : {s.a, s.b, s.c}) test::deviceMemory->release(p);
    test::deviceMemory->release(different);
    cuda(cudaGraphExecDestroy(exec), "graph");
    cuda(cudaGraphDestroy(graph), "graph");

    // What is not legal during a capture says so, and leaves it whole.
    cuda(cudaStreamBeginCapture(stream, test::captureMode()), "capture");
    expect(o.launch(stream), "captured launch", comm);
    const mkResult_t reserve = mkCommReserve(comm, size_t{1} << 32);
    const mkResult_t destroy = mkCommDestroy(comm);
    cuda(cudaStreamEndCapture(stream, &graph), "capture");
    cuda(cudaGraphDestroy(graph), "graph");
    expect(reserve, "reserve during a capture", nullptr, mkErrorCapture);
    expect(destroy, "destroy during a capture", nullptr, mkErrorCapture);
  });
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

namespace {

void requireReplays(const World& world, const test::Options& options) {
  Crew crew("replay", world, options);
  const bool finished = crew.finish(100);
  std::string how;
  for (const auto& [name, value] : options) how += ", " + name + " " + value;
  INFO(world.nodes << " nodes x " << world.locals << how << "\n" << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    MK_CHECK_NOTE(crew, r, "graphs", 0);
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
  }
}

}  // namespace

TEST_CASE("graphs are replayed with new inputs, mixed with other launches, and outlive a reservation", "[graphs]") {
  MK_NEED_GPUS(2);
  const World world = GENERATE(World{1, 2}, World{2, 1});
  const std::string op = GENERATE("reduce", "scatter", "gather");
  const std::string window = GENERATE("1", "0");
  if (op == "scatter" && window == "1") return;  // C is this rank's own
  // Where processes take turns on a GPU, a launch lasts several turns.
  const std::string replays = test::oneGpu() == test::OneGpu::processes ? "200" : op == "reduce" ? "10000" : "4000";
  requireReplays(world, {{"replays", replays}, {"window", window}, {"op", op}, {"tiles", "many"}});
}

TEST_CASE("graphs of tiles that clusters share", "[graphs]") {
  const World world = GENERATE(World{1, 1}, World{1, 2});
  MK_NEED_GPUS(world.ranks());
  requireReplays(world, {{"replays", test::oneGpu() == test::OneGpu::processes ? "200" : "2000"},
                         {"window", "0"},
                         {"op", "gather"},
                         {"tiles", "few"}});
}
