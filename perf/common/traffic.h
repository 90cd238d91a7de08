// Bytes that one operation sends over the network, from the hierarchy alone.  Written independently of the library's own
// formulas, because the two are compared.  Called by the programs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mkernel.h"
#include "options.h"
#include "report.h"

namespace mk::perf {

struct Traffic {
  uint64_t total = 0;             // payload of one launch, over all ranks
  bool perNode = false;           // every node sends the same, so each node's sum can be compared too
  std::vector<uint64_t> perRank;  // or each rank's own, if it is known
};

// GEMM+AllReduce: node sums are made inside the nodes and only they, or finished results, travel between nodes.  Swap: each of
// the N node sums goes to N-1 nodes.  Home: every element has one home node; N-1 nodes send it their sums (in the wire type),
// and the home node sends N-1 nodes the result (in C's type).
inline Traffic gemmAllReduceTraffic(const Options& options, const Row& row, int nodes) {
  const uint64_t elements = static_cast<uint64_t>(row.m) * static_cast<uint64_t>(row.n);
  const uint64_t others = static_cast<uint64_t>(nodes) - 1;
  const uint64_t wireBytes = info(options.wire).bytes, outBytes = info(options.out).bytes;
  if (row.exchange == MK_EXCHANGE_HOME) return {others * elements * (wireBytes + outBytes), others == 0, {}};
  return {static_cast<uint64_t>(nodes) * others * elements * wireBytes, true, {}};
}

// Rows of a matrix of m rows that a rank has: ceil(m / ranks), the last ranks fewer or none.
struct RowShare {
  int64_t first = 0, rows = 0;
};
inline RowShare rowsOf(int64_t m, int rank, int ranks) {
  const int64_t height = (m + ranks - 1) / ranks;
  const int64_t first = std::min(m, rank * height);
  return {first, std::min(m, first + height) - first};
}

// GEMM+ReduceScatter: a rank sums in its node what is for the ranks with its local rank, and sends each of the other nodes' theirs.
inline Traffic gemmReduceScatterTraffic(const Options& options, const Row& row, const RunInfo& run) {
  Traffic traffic;
  for (const RankLine& me : run.lines) {
    uint64_t rows = 0;
    for (const RankLine& other : run.lines) {
      if (other.localRank == me.localRank && other.node != me.node)
        rows += static_cast<uint64_t>(rowsOf(row.m, other.rank, run.ranks).rows);
    }
    traffic.perRank.push_back(rows * static_cast<uint64_t>(row.n) * info(options.wire).bytes);
    traffic.total += traffic.perRank.back();
  }
  return traffic;
}

// AllGather+GEMM: a rank's rows reach every other node once.  Direct: it sends them to each.  Ring: it sends to the next node
// what that lacks of the rail's rows, which is all but that node's own.
inline Traffic allGatherGemmTraffic(const Options& options, const Row& row, const RunInfo& run) {
  const uint64_t rowBytes = static_cast<uint64_t>(row.k) * info(options.in).bytes;
  Traffic traffic;
  for (const RankLine& me : run.lines) {
    uint64_t rows = 0;
    for (const RankLine& other : run.lines) {
      const int next = (me.node + 1) % run.nodes;
      const bool sent = row.exchange == MK_EXCHANGE_RING ? other.localRank == me.localRank && other.node != next
                                                         : other.rank == me.rank;
      if (sent && run.nodes > 1) rows += static_cast<uint64_t>(rowsOf(row.m, other.rank, run.ranks).rows);
    }
    if (row.exchange != MK_EXCHANGE_RING) rows *= static_cast<uint64_t>(run.nodes) - 1;
    traffic.perRank.push_back(rows * rowBytes);
    traffic.total += rows * rowBytes;
  }
  return traffic;
}

}  // namespace mk::perf
