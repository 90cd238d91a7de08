// Whole operations whose agents on the GPU write the network card's queues themselves: two nodes, the ibgda plugin, and for its
// card one made of software (tests/ibgda), which reads and writes the GPUs' memory with copies of its own.  Says that nothing is
// lost or torn between kernels, queues, the proxy's reading of completions and the heap; of a real card it says nothing.
#include <cstdlib>
#include <string>

#include "gpu/device.h"
#include "gpu/job.h"
#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::expect;
using test::World;

MK_ROLE(queued) {
  mkComm_t comm = rank.join();
  const bool direct = rank.option("direct") == "1";
  cudaStream_t stream = nullptr;
  test::cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const Case cases[] = {
      {.m = 512, .n = 512, .k = 256},
      {.m = 1000, .n = 776, .k = 528, .bias = true, .alpha = 0.5f, .beta = -1},
      {.m = 300, .n = 264, .k = 200, .out = mkFloat32, .window = true, .beta = 2},
      {.m = 1, .n = 8, .k = 8},
  };
  rank.attempt("cases", [&] {
    uint64_t seed = 0;
    for (int round = 0; round < 3; ++round) {
      for (const char* operation : {"reduce", "scatter", "gather"}) {
        for (Case c : cases) {
          c.op = test::operationOf(operation);
          c.window = c.window && c.op != MK_OP_GEMM_REDUCE_SCATTER;
          c.seed = ++seed;
          test::Job job(c, rank.world(), rank.rank(), comm);
          job.reserve();
          expect(job.launch(stream), operation, comm);
          test::synchronize(stream);
          mkResult_t async = mkSuccess;
          expect(mkCommGetAsyncError(comm, &async), "async");
          expect(async, "asynchronous", comm);
          job.check();
        }
      }
    }
    mkCommInfo_t info;
    MK_INIT(&info, MK_ID_COMM_INFO);
    expect(mkCommQuery(comm, &info), "query");
    if (std::string(info.transport) != "ibgda") throw std::string("transport ") + info.transport;
    if (info.netPath != MK_NET_PATH_DIRECT) throw std::string("through host memory");
    if (info.netMessagesSent == 0) throw std::string("nothing was sent");
    // Agents have posted everything, or the proxy has.
    if (direct != (info.netBatches == 0)) throw std::to_string(info.netBatches) + " submissions by the proxy";
  });
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("operations over queues that the GPU writes", "[queues]") {
#ifndef MK_TEST_IBGDA
  MK_SKIP_TEST("built without the ibgda plugin");
#else
  MK_NEED_GPUS(2);
  const World world{2, 1};
  const std::string direct = GENERATE("1", "0");
  const std::string entries = GENERATE("1024", "16");
  // Where the tests look for plugins, and where this one was built.
  const char* const folders = std::getenv("MKERNEL_PLUGIN_PATH");
  const std::string path = (folders != nullptr ? std::string(folders) + ":" : "") + MK_TEST_IBGDA;
  Crew crew("queued", world, {{"direct", direct}},
            {"MKERNEL_NET=ibgda", "MKERNEL_PLUGIN_PATH=" + path, "MKERNEL_DIRECT_POST=" + direct,
             "MKERNEL_IBGDA_ENTRIES=" + entries});
  const bool finished = crew.finish(120);
  INFO("MKERNEL_DIRECT_POST=" << direct << ", queues of " << entries << "\n" << crew.story());
  REQUIRE(finished);
  for (int r = 0; r < world.ranks(); ++r) {
    CHECK(crew.status(r) == 0);
    MK_CHECK_NOTE(crew, r, "cases", 0);
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
  }
#endif
}
