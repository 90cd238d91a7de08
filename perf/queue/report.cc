// Output of mk_queue_perf; see report.h.
#include "queue/report.h"

#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "common/json.h"

namespace mk::perf {
namespace {

std::string number(const char* format, double value, bool known) {
  if (!known) return "-";
  char text[40];
  snprintf(text, sizeof(text), format, value);
  return text;
}

// "8x125" for 125 posts that took 8 writes.
std::string histogram(const std::vector<int64_t>& accepted) {
  std::string text;
  for (size_t size = accepted.size(); size-- > 0;) {
    if (accepted[size] == 0) continue;
    text += (text.empty() ? "" : " ") + std::to_string(size) + "x" + std::to_string(accepted[size]);
  }
  return text;
}

constexpr const char* kColumns =
    "# us: latency: half of a round trip, from the post to the arrival seen; else time per write.  accepted: writes a\n"
    "# post took x posts, 0 where the transport had no room.  #wrong: bytes, of all that arrived and just behind\n"
    "#\n"
    "# test          bytes batch   writes   us median    us 99%    writes/s      GB/s  #wrong  accepted\n";

}  // namespace

QueueReport::QueueReport(const QueueOptions& options) : options_(options) {
  if (options_.json.empty()) return;
  json_.reset(fopen(options_.json.c_str(), "we"));
  if (!json_) throw std::runtime_error("--json " + options_.json + ": " + strerror(errno));
}

void QueueReport::json(const std::string& line) {
  if (json_ && (fprintf(json_.get(), "%s\n", line.c_str()) < 0 || fflush(json_.get()) != 0)) {
    throw std::runtime_error("--json " + options_.json + ": " + strerror(errno));
  }
}

void QueueReport::header(const World& world, const Plugin& plugin, const std::string& device) {
  const mkTransportProperties_t& p = plugin.properties();
  const char* contract = plugin.ordered() ? "ordered" : "completion";
  const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
  double load = 0;
  if (getloadavg(&load, 1) != 1) load = NAN;
  printf("# mk_queue_perf: transport %s (interface %u.%u), device %s, %s\n", plugin.table().name,
         plugin.table().abiMajor, plugin.table().abiMinor, device.c_str(), plugin.path().c_str());
  printf("# contract %s: arrival is %s; at most %u writes per post, %u outstanding; queues %u\n", contract,
         plugin.ordered() ? "a flag in memory" : "an event of poll", p.maxBatch, p.maxOutstanding, options_.queues);
  printf("# rank 0 to rank 1 on %s; %s has %" PRId64 " cores, load %.1f at the start\n",
         world.localSize() == 2 ? "the same host" : "another host", world.host().c_str(), cores, load);
  printf(
      "# Times are of the host's clock, host memory to host memory.  Over a software transport (loopback; efa over tcp "
      "or\n"
      "# shm; ibverbs over soft-RoCE) they are those of this machine and say nothing about a network card.\n#\n%s",
      kColumns);
  JsonObject object;
  object.add("record", "header").add("program", "mk_queue_perf").add("transport", plugin.table().name);
  object.add("path", plugin.path()).add("device", device).add("contract", contract).add("memory", "host");
  object.add("maxBatch", p.maxBatch).add("maxOutstanding", p.maxOutstanding).add("queues", options_.queues);
  object.add("host", world.host()).add("sameHost", world.localSize() == 2).add("cores", cores).add("load", load);
  json(object.text());
}

void QueueReport::row(const QueueRow& row) {
  ++rows_;
  bad_ += row.wrong != 0;
  wrong_ += row.wrong;
  const bool latency = row.kind == Kind::latency;
  const double rate = latency ? NAN : static_cast<double>(row.writes) / row.seconds;
  const double gbps = latency ? NAN : rate * static_cast<double>(row.bytes) / 1e9;
  const double us = latency ? row.medianUs : 1e6 / rate;
  printf("  %-9s %9zu %5d %8" PRId64 " %11.2f %9s %11s %9s %7" PRId64 "  %s\n", nameOf(row.kind), row.bytes, row.batch,
         row.writes, us, number("%.2f", row.p99Us, latency).c_str(), number("%.0f", rate, !latency).c_str(),
         number("%.3f", gbps, !latency).c_str(), row.wrong, histogram(row.accepted).c_str());
  fflush(stdout);
  JsonObject posts;
  for (size_t size = 0; size < row.accepted.size(); ++size) {
    if (row.accepted[size] != 0) posts.add(std::to_string(size).c_str(), row.accepted[size]);
  }
  JsonObject object;
  object.add("record", "row").add("test", nameOf(row.kind)).add("bytes", static_cast<uint64_t>(row.bytes));
  object.add("batch", row.batch).add("writes", row.writes);
  object.add("medianUs", latency ? row.medianUs : NAN).add("p99Us", latency ? row.p99Us : NAN);
  object.add("writesPerSecond", rate).add("gigabytesPerSecond", gbps);
  object.add("wrong", row.wrong).add("passed", row.wrong == 0).raw("accepted", posts.text());
  json(object.text());
}

bool QueueReport::footer() {
  printf("#\n# Wrong bytes: %" PRId64 "\n# %s: %d rows good, %d bad\n", wrong_, bad_ == 0 ? "PASSED" : "FAILED",
         rows_ - bad_, bad_);
  JsonObject object;
  object.add("record", "summary").add("rows", rows_).add("bad", bad_).add("passed", bad_ == 0);
  json(object.text());
  return bad_ == 0;
}

}  // namespace mk::perf
