// Roles of agents within one launch, taken by arrival ticket: control and communication first, so that whatever number of
// agents is resident, those others wait for are among them.
#pragma once

#include "sched/common.h"

namespace mk::sched {

enum class Role : uint32_t { control, send, receive, move, copyOut, compute };

struct RoleCounts {
  uint32_t send = 0, receive = 0, move = 0, copyOut = 0, compute = 1;

  MK_HD constexpr uint32_t total() const { return 1 + send + receive + move + copyOut + compute; }
  // Agents that always suffice: every role but compute in full, and one that computes.
  MK_HD constexpr uint32_t minimum() const { return total() - compute + 1; }
  MK_HD constexpr Role role(uint64_t ticket) const {
    if (ticket < 1) return Role::control;
    if (ticket < 1 + send) return Role::send;
    if (ticket < 1 + send + receive) return Role::receive;
    if (ticket < 1 + send + receive + move) return Role::move;
    if (ticket < 1 + send + receive + move + copyOut) return Role::copyOut;
    return Role::compute;
  }
};

}  // namespace mk::sched
