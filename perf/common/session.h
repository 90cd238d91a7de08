// One rank's communicator in a perf program: joining, what the library says of the run, an operation's arguments and choices,
// and the bytes its proxy counted.  A call that fails ends all ranks with the library's text.  Called by the programs.
#pragma once

#include <cstdint>
#include <string>

#include "mkernel.h"
#include "options.h"
#include "report.h"
#include "traffic.h"
#include "world.h"

namespace mk::perf {

// Where the tensors of one launch lie.  C, or AllGather+GEMM's whole A where it is asked for, is at `offset` of the window, if there
// is one, else at c or gathered.
struct Operands {
  void* a = nullptr;
  void* b = nullptr;
  void* bias = nullptr;
  void* c = nullptr;
  void* gathered = nullptr;
  mkWindow_t window = nullptr;
  uint64_t offset = 0;
};

// Packed.
mkTensor_t matrix(Type type, void* data, int64_t rows, int64_t columns);

class Session {
 public:
  struct Counters {
    uint64_t bytes = 0, messages = 0, batches = 0;
  };

  // Nothing is done yet.  Options must outlive the session.
  Session(World& world, const Options& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Collective: all ranks of the world.
  void connect();
  // A communicator of this rank alone.
  void connectAlone();
  mkComm_t comm() const { return comm_; }

  void require(mkResult_t result, const std::string& call);
  void requireAsync(const std::string& what);
  // Collective.
  RunInfo describe(const std::string& device);

  // k: this rank's part.  The result refers to the options and to this session.
  mkGemmAllReduceArgs_t arguments(const Operands& operands, int64_t m, int64_t n, int64_t k) const;
  // rows: this rank's, of C.
  mkGemmReduceScatterArgs_t scatterArguments(const Operands& operands, int64_t m, int64_t rows, int64_t n,
                                             int64_t k) const;
  // rows: this rank's, of A.
  mkAllGatherGemmArgs_t gatherArguments(const Operands& operands, int64_t m, int64_t rows, int64_t n, int64_t k) const;
  mkResult_t enqueue(const mkGemmAllReduceArgs_t* args, mkStream_t stream) {
    return mkGemmAllReduce(comm_, args, stream);
  }
  mkResult_t enqueue(const mkGemmReduceScatterArgs_t* args, mkStream_t stream) {
    return mkGemmReduceScatter(comm_, args, stream);
  }
  mkResult_t enqueue(const mkAllGatherGemmArgs_t* args, mkStream_t stream) {
    return mkAllGatherGemm(comm_, args, stream);
  }
  // Arguments ask for so many agents from now on, those made before too (Options::sweeps()).
  void setAgents(const SplitAgents& agents);
  // Asks what would be used for an operation (MK_OP_...) with these arguments, into the row; or, where agents were asked for that
  // the library refuses, why.  Collective.
  void choose(int op, const void* args, int nodes, Row* row);
  // Grows the heap to the row's workspace.  Collective.
  void reserve(const Row& row);

  // Collective, as is the comparison with the formula: all ranks' launches have ended.
  Counters counters();
  void compareBytes(const RunInfo& run, const Traffic& traffic, const Counters& before, const Counters& after,
                    Row* row);

  void finalize();  // collective
  void destroy();

 private:
  // aRows, cRows: of A and C.
  template <typename Args>
  void fillArguments(Args* args, const Operands& operands, int64_t aRows, int64_t cRows, int64_t n, int64_t k) const;

  World& world_;
  const Options& options_;
  mkComm_t comm_ = nullptr;
  mkTune_t tune_ = {};
};

}  // namespace mk::perf
