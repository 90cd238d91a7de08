// What a transport over RDMA verbs makes of each asynchronous event of its device: an error that says what has happened, or a
// line in the log.
#pragma once

#include <infiniband/verbs.h>

#include <cstring>
#include <functional>
#include <string>

#include "link.h"
#include "support/catch_compat.h"

namespace test {

struct DeviceEvent {
  int type;
  enum Ends { device, connection, nothing } ends;
  bool ofOtherPort = false;
};

inline const std::vector<DeviceEvent>& deviceEvents() {
  static const std::vector<DeviceEvent> all = {
      {IBV_EVENT_DEVICE_FATAL, DeviceEvent::device},       {IBV_EVENT_CQ_ERR, DeviceEvent::device},
      {IBV_EVENT_PORT_ERR, DeviceEvent::device},           {IBV_EVENT_PORT_ERR, DeviceEvent::nothing, true},
      {IBV_EVENT_QP_FATAL, DeviceEvent::connection},       {IBV_EVENT_QP_REQ_ERR, DeviceEvent::connection},
      {IBV_EVENT_QP_ACCESS_ERR, DeviceEvent::connection},  {IBV_EVENT_PATH_MIG, DeviceEvent::nothing},
      {IBV_EVENT_PATH_MIG_ERR, DeviceEvent::nothing},      {IBV_EVENT_COMM_EST, DeviceEvent::nothing},
      {IBV_EVENT_SQ_DRAINED, DeviceEvent::nothing},        {IBV_EVENT_PORT_ACTIVE, DeviceEvent::nothing},
      {IBV_EVENT_LID_CHANGE, DeviceEvent::nothing},        {IBV_EVENT_GID_CHANGE, DeviceEvent::nothing},
      {IBV_EVENT_PKEY_CHANGE, DeviceEvent::nothing},       {IBV_EVENT_SM_CHANGE, DeviceEvent::nothing},
      {IBV_EVENT_CLIENT_REREGISTER, DeviceEvent::nothing},
  };
  return all;
}

// raise: for every endpoint that is open in this process.  words: of the reason, where the event ends something.
inline void checkDeviceEvent(const Setup& setup, const DeviceEvent& event,
                             const std::function<void(const DeviceEvent&)>& raise,
                             const std::function<std::string(int type)>& words) {
  runWorld(setup, Mode::threads, 2, [&](Rank& rank) {
    Link link(rank);
    const int peer = 1 - rank.index;
    SharedMemory in(4096), out(4096);
    std::memset(out.data(), 0x77, out.bytes());
    Bytes unused;
    Write write = {};
    write.localMemory = link.registerMemory(out.piece(), &unused);
    write.remoteMemory = write.flagMemory = link.share(in.piece())[static_cast<size_t>(peer)];
    write.source = out.data();
    write.remoteOffset = 8;
    write.bytes = 1000;
    const auto exchange = [&](uint32_t value) {
      write.flagValue = write.immediate = value;
      link.postAll(peer, {write});
      link.awaitNotification(peer, value, in.data());
      rank.barrier();
    };
    exchange(1);
    if (rank.index == 0) raise(event);
    rank.barrier();
    if (event.ends == DeviceEvent::nothing) {
      for (const Event& seen : link.pollFor(std::chrono::milliseconds(20)))
        expect(seen.kind != MK_EVENT_ERROR, "an event that ends nothing is an error: %s", link.table().lastError());
      return exchange(2);
    }
    for (bool told = false; !told;) {
      for (const auto deadline = rank.deadline(); !told;) {
        expect(Clock::now() < deadline, "nobody tells of the event");
        for (const Event& seen : link.poll()) {
          if (seen.kind != MK_EVENT_ERROR) continue;
          expect(seen.peer == (event.ends == DeviceEvent::device ? -1 : peer), "an error of peer %d", seen.peer);
          const std::string reason = link.table().lastError();
          const std::string wanted = words(event.type);
          expect(reason.find(wanted) != reason.npos, "'%s' is not in the reason: %s", wanted.c_str(), reason.c_str());
          told = true;
        }
      }
    }
    // From now on nothing succeeds, and nothing hangs.
    int accepted = 0;
    if (link.table().post(link.endpoint(), peer, &write, 1, &accepted) == mkSuccess) {
      bool ended = false;
      for (const auto deadline = rank.deadline(); !ended;) {
        expect(Clock::now() < deadline, "a write after the event has no end");
        for (const Event& seen : link.poll()) {
          if (seen.kind != MK_EVENT_SENT) continue;
          expect(seen.status != mkSuccess, "a write after the event has succeeded");
          ended = true;
        }
      }
    }
    rank.barrier();
  });
}

}  // namespace test
