// Output of mk_queue_perf: its table, in the style of nccl-tests, and JSON Lines.  Rank 0 alone has one.  Called by queue.cc.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "queue/link.h"
#include "queue/options.h"

namespace mk::perf {

struct QueueRow {
  Kind kind = Kind::latency;
  size_t bytes = 0;
  int batch = 1;  // writes offered to a post
  int64_t writes = 0;
  double seconds = 0;              // rate and bandwidth: first post to the peer's word that all have arrived
  double medianUs = 0, p99Us = 0;  // latency: half round trips
  std::vector<int64_t> accepted;   // posts that took 0, 1, 2, ... writes
  int64_t wrong = 0;               // bytes
};

class QueueReport {
 public:
  // Throws std::runtime_error if there can be no file of JSON.
  explicit QueueReport(const QueueOptions& options);
  void header(const World& world, const Plugin& plugin, const std::string& device);
  void row(const QueueRow& row);
  bool footer();  // whether all was right

 private:
  struct Close {
    void operator()(FILE* file) const { fclose(file); }
  };
  void json(const std::string& line);

  const QueueOptions& options_;
  std::unique_ptr<FILE, Close> json_;
  int rows_ = 0, bad_ = 0;
  int64_t wrong_ = 0;
};

}  // namespace mk::perf
