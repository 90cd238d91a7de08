// The endpoints of this process, so that they find each other and use memory and arrival rings directly.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "mailbox.h"
#include "memory.h"

namespace mk::plugin::loopback {

// What an endpoint shows to the others of its process.  Any thread.
class Presence {
 public:
  std::shared_ptr<LocalRegion> region(uint64_t sequence) const;
  void addRegion(const std::shared_ptr<LocalRegion>& region);
  void removeRegion(uint64_t sequence);

  // The ring that the peer of this index writes; null: none.
  std::shared_ptr<Mailbox> mailbox(int peer) const;
  void setMailboxes(std::vector<std::shared_ptr<Mailbox>> mailboxes);

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<LocalRegion>> regions_;
  std::vector<std::shared_ptr<Mailbox>> mailboxes_;
};

void announcePresence(const Token& id, const std::shared_ptr<Presence>& presence);
void withdrawPresence(const Token& id);
// Null: not an endpoint of this process.  The child of a fork has its parent's table, but is another process.
std::shared_ptr<Presence> findPresence(const Token& id, int64_t pid);

}  // namespace mk::plugin::loopback
