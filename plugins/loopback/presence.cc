// See presence.h.
#include "presence.h"

#include <unistd.h>

#include <utility>

namespace mk::plugin::loopback {
namespace {

std::mutex tableMutex;
// Exists while there are endpoints, so that nothing is left for the end of the process to destroy.
std::map<Token, std::shared_ptr<Presence>>* table = nullptr;

}  // namespace

std::shared_ptr<LocalRegion> Presence::region(uint64_t sequence) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(sequence);
  return found != regions_.end() ? found->second : nullptr;
}

void Presence::addRegion(const std::shared_ptr<LocalRegion>& region) {
  const std::lock_guard lock(mutex_);
  regions_[region->sequence()] = region;
}

void Presence::removeRegion(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  regions_.erase(sequence);
}

std::shared_ptr<Mailbox> Presence::mailbox(int peer) const {
  const std::lock_guard lock(mutex_);
  return peer >= 0 && static_cast<size_t>(peer) < mailboxes_.size() ? mailboxes_[static_cast<size_t>(peer)] : nullptr;
}

void Presence::setMailboxes(std::vector<std::shared_ptr<Mailbox>> mailboxes) {
  const std::lock_guard lock(mutex_);
  mailboxes_ = std::move(mailboxes);
}

void announcePresence(const Token& id, const std::shared_ptr<Presence>& presence) {
  const std::lock_guard lock(tableMutex);
  if (table == nullptr) table = new std::map<Token, std::shared_ptr<Presence>>;
  (*table)[id] = presence;
}

void withdrawPresence(const Token& id) {
  const std::lock_guard lock(tableMutex);
  if (table == nullptr) return;
  table->erase(id);
  if (!table->empty()) return;
  delete table;
  table = nullptr;
}

std::shared_ptr<Presence> findPresence(const Token& id, int64_t pid) {
  if (pid != getpid()) return nullptr;
  const std::lock_guard lock(tableMutex);
  if (table == nullptr) return nullptr;
  const auto found = table->find(id);
  return found != table->end() ? found->second : nullptr;
}

}  // namespace mk::plugin::loopback
