// Bytes that one GEMM+AllReduce sends over the network, from the hierarchy alone: node sums are made inside the nodes and
// only they, or finished results, travel between nodes.  Written independently of the library's own formula, because the two
// are compared.  Called by gemm_ar.cc.
#pragma once

#include <cstdint>

#include "mkernel.h"

namespace mk::perf {

struct Traffic {
  uint64_t total = 0;    // payload of one launch, over all ranks
  bool perNode = false;  // every node sends the same, so each node's sum can be compared too
};

// Swap: each of the N node sums goes to N-1 nodes.  Home: every element has one home node; N-1 nodes send it their sums (in
// the wire type), and the home node sends N-1 nodes the result (in C's type).
inline Traffic gemmAllReduceTraffic(int64_t m, int64_t n, int nodes, uint32_t exchange, uint64_t wireBytes,
                                    uint64_t outBytes) {
  const uint64_t elements = static_cast<uint64_t>(m) * static_cast<uint64_t>(n);
  const uint64_t others = static_cast<uint64_t>(nodes) - 1;
  if (exchange == MK_EXCHANGE_HOME) return {others * elements * (wireBytes + outBytes), others == 0};
  return {static_cast<uint64_t>(nodes) * others * elements * wireBytes, true};
}

}  // namespace mk::perf
