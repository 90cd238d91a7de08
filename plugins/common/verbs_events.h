// What an asynchronous event of an RDMA device means for its connections.
#pragma once

#include <infiniband/verbs.h>

namespace mk::plugin {

enum class EventMeaning {
  deviceEnds,  // nothing succeeds any more
  portEnds,    // nor over this port
  pairEnds,    // nor on this queue pair
  mayBreak,    // connections made before may break, and then say so themselves
  nothing,
};

inline EventMeaning meaningOf(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
      return EventMeaning::deviceEnds;
    case IBV_EVENT_PORT_ERR:
      return EventMeaning::portEnds;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return EventMeaning::pairEnds;
    // A port whose address has changed; a path that has failed and was to be replaced: retries decide.
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_PATH_MIG_ERR:
      return EventMeaning::mayBreak;
    default:
      return EventMeaning::nothing;
  }
}

}  // namespace mk::plugin
