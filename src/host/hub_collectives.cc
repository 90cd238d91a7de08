// See hub_collectives.h.
#include "host/hub_collectives.h"

#include <algorithm>

namespace mk {
namespace {

// Once a rank has said in agree() that it failed, the others get this long to say so too, for the lowest rank's text.
constexpr int agreeGraceMs = 200;
constexpr size_t maxNamed = 8;

const char* callName(uint32_t kind) { return kind == Contribution::agree ? "agree" : "allgather"; }

}  // namespace

bool HubCollectives::contribute(int rank, Contribution c) {
  auto& next = next_[static_cast<size_t>(rank)];
  if (c.sequence != next) return false;
  ++next;
  if (stopped_) return true;
  const auto [entry, isNew] = open_.try_emplace(c.sequence);
  Open& open = entry->second;
  if (isNew) {
    open.kind = c.kind;
    open.what = c.what;
    open.first = rank;
    open.parts.resize(static_cast<size_t>(line_->nranks()));
  }
  if (const TimePoint deadline = afterMs(hubShareOfTimeout(c.leftMs)); deadline < open.deadline) {
    open.deadline = deadline;
    open.timeoutMs = c.timeoutMs;
    open.joining = c.leftMs < c.timeoutMs ? rank : -1;
  }
  open.arrived.emplace(rank, c.launched);
  if (open.failed.has_value()) {  // it has been told
    if (open.arrived.size() == next_.size()) open_.erase(entry);
    return true;
  }
  if (open.kind != c.kind || open.what != c.what) {
    failWith(entry,
             {mkErrorInvalidUsage, format("ranks are in different calls: %s in %s '%s', %s in %s '%s'",
                                          line_->name(open.first).c_str(), callName(open.kind), open.what.c_str(),
                                          line_->name(rank).c_str(), callName(c.kind), c.what.c_str())});
    return true;
  }
  if (!left_.empty()) {
    failWith(entry, {mkErrorRemote, format("%s: %s", open.what.c_str(), left_.c_str())});
    return true;
  }
  if (c.kind == Contribution::allgather)
    open.parts[static_cast<size_t>(rank)] = WireWriter(Message::part).u64(c.sequence).i32(rank).bytes(c.bytes).done();
  else if (c.code != mkSuccess) {
    if (open.failures.empty()) open.deadline = std::min(open.deadline, afterMs(agreeGraceMs));
    open.failures[rank] = {static_cast<mkResult_t>(c.code), c.text};
  }
  if (open.arrived.size() == next_.size()) answer(entry);
  return true;
}

void HubCollectives::answer(Entry entry) {
  const Open& open = entry->second;
  if (!open.failures.empty()) {
    failWith(entry, agreeFailure(open));
    return;
  }
  const FrameBytes success = WireWriter(Message::collected).u64(entry->first).u32(mkSuccess).text("", 0).done();
  for (int rank = 0; rank < line_->nranks(); ++rank) {
    if (open.kind == Contribution::allgather)
      for (const FrameBytes& part : open.parts) line_->send(rank, part);
    line_->send(rank, success);
  }
  open_.erase(entry);
}

HubCollectives::Failure HubCollectives::agreeFailure(const Open& open) const {
  const auto& [rank, failure] = *open.failures.begin();
  return {failure.code,
          format("%s failed on %s: %s", open.what.c_str(), line_->name(rank).c_str(), failure.text.c_str())};
}

// Answers all, also those that have not come yet: they may be waiting for one of the others by other means.
void HubCollectives::failWith(Entry entry, Failure failure) {
  Open& open = entry->second;
  const FrameBytes frame = WireWriter(Message::collected)
                               .u64(entry->first)
                               .u32(static_cast<uint32_t>(failure.code))
                               .text(failure.text, maxTextBytes)
                               .done();
  for (int rank = 0; rank < line_->nranks(); ++rank) line_->send(rank, frame);
  open.failed = std::move(failure);
  open.parts.clear();
  open.failures.clear();
  if (open.arrived.size() == next_.size()) open_.erase(entry);
}

std::string HubCollectives::elsewhere(uint64_t epoch) const {
  for (const auto& [sequence, open] : open_) {
    if (open.failed.has_value()) continue;
    for (const auto& [rank, launched] : open.arrived)
      if (launched < epoch)
        return format("%s in %s '%s'", line_->name(rank).c_str(), callName(open.kind), open.what.c_str());
  }
  return "";
}

void HubCollectives::rankLeft(int rank) {
  if (stopped_ || !left_.empty()) return;
  left_ = line_->name(rank) + " has left the communicator";
  for (auto entry = open_.begin(); entry != open_.end();) {
    const auto current = entry++;
    const Open& open = current->second;
    if (open.failed.has_value()) continue;
    failWith(current, open.failures.empty() ? Failure{mkErrorRemote, format("%s: %s", open.what.c_str(), left_.c_str())}
                                            : agreeFailure(open));
  }
}

void HubCollectives::stop() {
  stopped_ = true;
  open_.clear();
}

void HubCollectives::tick(TimePoint now) {
  for (auto entry = open_.begin(); entry != open_.end();) {
    const auto current = entry++;
    const Open& open = current->second;
    if (open.failed.has_value() || now < open.deadline) continue;
    if (!open.failures.empty()) {
      failWith(current, agreeFailure(open));
      continue;
    }
    std::string missing;
    size_t count = 0;
    for (int rank = 0; rank < line_->nranks(); ++rank) {
      if (open.arrived.count(rank) != 0 || ++count > maxNamed) continue;
      missing += (count == 1 ? "" : ", ") + line_->name(rank);
    }
    if (count > maxNamed) missing += format(" and %zu more", count - maxNamed);
    if (open.joining >= 0) missing += "; counted from when " + line_->name(open.joining) + " began to join";
    failWith(current, {mkErrorTimeout, format("%s '%s': not called within %u ms by %s", callName(open.kind),
                                              open.what.c_str(), open.timeoutMs, missing.c_str())});
  }
}

TimePoint HubCollectives::nextDeadline() const {
  TimePoint next = TimePoint::max();
  for (const auto& [sequence, open] : open_)
    if (!open.failed.has_value()) next = std::min(next, open.deadline);
  return next;
}

}  // namespace mk
