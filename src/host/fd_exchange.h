// Passing descriptors between the processes of a node (SCM_RIGHTS over abstract Unix sockets that exist only meanwhile).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/bootstrap.h"
#include "host/unique_fd.h"

namespace mk {

// Most descriptors of one rank in one exchange: what the kernel passes in one message.
constexpr size_t kMaxFds = 253;

// Collective over the whole communicator: every rank gives its descriptors to each other process of its node, or, with
// withinProcess, to each other rank, and gets theirs.  Numbers may differ.  The result is by local rank; empty for this rank,
// and for ranks of this process unless withinProcess.  `processes`: processToken() of every rank.  Throws on every rank if one
// fails.
std::vector<std::vector<UniqueFd>> exchangeFds(Bootstrap& bootstrap, int rank, const std::vector<uint64_t>& processes,
                                               const std::vector<int>& fds, bool withinProcess,
                                               const std::string& what);

// A random number that tells this process from any other, also from others with its process id (containers) and from its
// forked children.
uint64_t processToken();

}  // namespace mk
