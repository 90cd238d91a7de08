// Arguments of mk_queue_perf, in the letters of nccl-tests.  Called by queue.cc.
#pragma once

#include <cstdint>
#include <string>

namespace mk::perf {

// What a row measures.
enum class Kind { latency, rate, bandwidth };
const char* nameOf(Kind kind);

struct QueueOptions {
  bool help = false;
  int64_t bytesMin = 256, bytesMax = 4 << 20, factor = 2;  // of a write in the rows of bandwidth
  int64_t smallBytes = 8;                                  // in the others
  int64_t writes = 10000, warmup = 20;                     // of each row
  uint32_t queues = 1;
  int device = 0;
  int timeoutSeconds = 60;
  std::string transport = "loopback";  // a name, or the file of a plugin
  std::string json;
  // A negative control of the check: rank 0 spoils a byte before it is sent.  A developer's switch, not in the help.
  bool corrupt = false;
  Kind corruptKind = Kind::latency;
};

// Throws UsageError (common/options.h).
QueueOptions parseQueueOptions(int argc, char** argv, int ranks);
const char* queueHelpText();

}  // namespace mk::perf
