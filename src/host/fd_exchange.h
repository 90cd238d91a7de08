// Passing descriptors between the processes of a node (SCM_RIGHTS over abstract Unix sockets that exist only meanwhile).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/bootstrap.h"
#include "host/unique_fd.h"

namespace mk {

// Collective over the whole communicator: every rank gives a descriptor to each other process of its node and gets theirs.
// The result is by local rank; empty for this rank and for ranks of this process.  `processes`: processToken() of every rank.
// Throws on every rank if one fails.
std::vector<UniqueFd> exchangeFds(Bootstrap& bootstrap, int rank, const std::vector<uint64_t>& processes, int fd,
                                  int timeoutMs, const std::string& what);

// A random number that tells this process from any other, also from others with its process id (containers) and from its
// forked children.
uint64_t processToken();

}  // namespace mk
