// Which tiles are chosen and can be asked for, and what follows from them alone.
#include <memory>

#include "gpu/crews.h"
#include "ops/ag_world.h"

using test::AgOperands;
using test::Case;
using test::expect;
using test::newStream;
using test::Operands;
using test::requireCrew;
using test::World;

namespace {
constexpr int kScatter = MK_OP_GEMM_REDUCE_SCATTER;
}

// ---- What is asked and answered ----------------------------------------------------------------------------------------

MK_ROLE(tuned) {
  mkComm_t comm = rank.join();
  rank.attempt("cases", [&] {
    mkCommInfo_t info;
    MK_INIT(&info, MK_ID_COMM_INFO);
    expect(mkCommQuery(comm, &info), "query");
    const auto sms = static_cast<uint32_t>(info.smCount);
    const auto ask = [&](int op, const void* args) {
      mkTune_t t;
      MK_INIT(&t, MK_ID_TUNE);
      expect(mkTuneQuery(comm, op, args, &t), "tune");
      const std::string text = "operation " + std::to_string(op) + ": tile " + std::to_string(t.tileM) + "x" +
                               std::to_string(t.tileN) + ", agents " + std::to_string(t.computeAgents) + "/" +
                               std::to_string(t.receiveAgents) + ", minSMs " + std::to_string(t.minSMs) + " of " +
                               std::to_string(sms);
      rank.note("tune", 0, text);
      if (t.tileM != 256 || (t.tileN != 112 && t.tileN != 128 && t.tileN != 224 && t.tileN != 256) ||
          t.computeAgents == 0 || t.minSMs < 2 || t.minSMs > sms || t.computeAgents > sms)
        throw text;
      return t;
    };
    const auto refused = [&](int op, const void* args, const char* why) {
      expect(mkOpCheck(comm, op, args), why, nullptr, mkErrorInvalidArgument);
      if (std::string(mkGetLastError(nullptr)).find(why) == std::string::npos)
        throw std::string(mkGetLastError(nullptr)) + " instead of " + why;
    };
    const World world = rank.world();
    const Case c{.op = kScatter, .m = 2048, .n = 1024, .k = 64};
    // By the number of clusters that the rank has its tiles are some of 224 columns, or it is asked for by name.
    const AgOperands medium({.m = 1024, .n = 3584, .k = 64, .transposed = true}, world, rank.rank(), comm);
    const Operands o(c, world, rank.rank(), comm);
    mkGemmReduceScatterArgs_t scatter = o.scatterArgs();
    scatter.tune = nullptr;
    ask(kScatter, &scatter);
    const AgOperands ag({.m = 2048, .n = 1024, .k = 64}, world, rank.rank(), comm);
    // Of few rows, in slices on one node.
    const AgOperands few({.m = 200, .n = 1024, .k = 2048}, world, rank.rank(), comm);
    mkAllGatherGemmArgs_t gather = ag.args();

    mkTune_t wrong;
    MK_INIT(&wrong, MK_ID_TUNE);
    wrong.tileM = 64;
    scatter.tune = gather.tune = &wrong;
    refused(kScatter, &scatter, "tune.tileM is 64; legal on the CUDA platform: 0 (automatic), 256");
    refused(MK_OP_ALL_GATHER_GEMM, &gather, "tune.tileM is 64");
    wrong.tileM = 0, wrong.tileN = 64;
    refused(kScatter, &scatter, "tune.tileN is 64");
    refused(MK_OP_ALL_GATHER_GEMM, &gather, "tune.tileN is 64");
    mkTune_t named;
    MK_INIT(&named, MK_ID_TUNE);
    named.tileN = 224;
    gather = medium.args();
    gather.tune = &named;
    if (world.nodes == 1) {
      if (ask(MK_OP_ALL_GATHER_GEMM, &gather).tileN != 224) throw std::string("not the tiles asked for");
      wrong.tileN = 64;
      gather.tune = &wrong;
      refused(MK_OP_ALL_GATHER_GEMM, &gather,
              "tune.tileN is 64; legal on the CUDA platform: 0 (automatic), 128, 256, 112, 224");
    } else {
      refused(MK_OP_ALL_GATHER_GEMM, &gather, "tune.tileN is 224; legal on the CUDA platform: 0 (automatic), 128, 256");
    }
    gather = few.args();  // B as (K, N)
    gather.tune = scatter.tune = &named;
    refused(MK_OP_ALL_GATHER_GEMM, &gather, "tune.tileN is 224");
    refused(kScatter, &scatter, "tune.tileN is 224");
    for (const AgOperands* each : {&ag, &few, &medium}) {
      gather = each->args();
      gather.tune = nullptr;
      const mkTune_t chosen = ask(MK_OP_ALL_GATHER_GEMM, &gather);
      if (world.nodes > 1 && chosen.exchange != MK_EXCHANGE_DIRECT) throw std::string("not direct");
      // What was chosen may be given back.
      mkTune_t back = chosen;
      back.minSMs = 0;
      gather.tune = &back;
      expect(mkOpCheck(comm, MK_OP_ALL_GATHER_GEMM, &gather), "what was chosen");
      const mkTune_t again = ask(MK_OP_ALL_GATHER_GEMM, &gather);
      if (again.tileN != chosen.tileN || again.computeAgents != chosen.computeAgents ||
          again.chunkRows != chosen.chunkRows)
        throw std::string("what was chosen is not what is chosen");
    }
  });
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("what would be used for each operation can be asked, and wrong choices are refused", "[choices]") {
  MK_NEED_GPUS(2);
  const World world = GENERATE(World{1, 1}, World{1, 2}, World{2, 1});
  requireCrew("tuned", world);
}

// ---- Parts of K --------------------------------------------------------------------------------------------------------

// Whichever part of a tile is the last to come.
MK_ROLE(repeats) {
  mkComm_t comm = rank.join();
  cudaStream_t stream = newStream();
  rank.attempt("cases", [&] {
    for (const bool transposed : {false, true}) {
      const AgOperands o({.m = 200, .n = 136, .k = 8192, .transposed = transposed}, rank.world(), rank.rank(), comm);
      test::reserveFor(comm, o.args());
      const auto [data, bytes] = o.deviceBytes('c');
      std::vector<char> first(bytes), again(bytes);
      for (int i = 0; i < 100; ++i) {
        test::cuda(cudaMemsetAsync(data, 0xff, bytes, stream), "C");
        test::launch(comm, o, stream);
        test::synchronize(stream);
        test::cuda(cudaMemcpy(again.data(), data, bytes, cudaMemcpyDeviceToHost), "C");
        if (i == 0) first = again;
        if (first != again) throw "launch " + std::to_string(i) + " has other bits than the first";
      }
      o.check();
    }
  });
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("AllGather+GEMM whose clusters share tiles has the same bits at each launch", "[choices]") {
  MK_NEED_GPUS(1);
  requireCrew("repeats", {1, 1});
}
