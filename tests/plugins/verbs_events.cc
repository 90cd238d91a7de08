#include "verbs_events.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

namespace {

struct Device {
  std::deque<ibv_async_event> events;  // raised, not yet heard
  ibv_qp* pair = nullptr;
};

std::mutex mutex;
std::map<ibv_context*, Device>& devices() {
  static std::map<ibv_context*, Device> all;
  return all;
}
thread_local bool ours = false;  // the event that this thread has heard last

// The functions that stand behind those of this file.
template <typename Function>
Function* real(const char* name) {
  static void* const library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  void* const found = library != nullptr ? dlvsym(library, name, "IBVERBS_1.1") : nullptr;
  if (found == nullptr) std::abort();
  return reinterpret_cast<Function*>(found);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  {
    const std::lock_guard lock(mutex);
    std::deque<ibv_async_event>& events = devices()[context].events;
    ours = !events.empty();
    if (ours) {
      *event = events.front();
      events.pop_front();
      return 0;
    }
  }
  return real<int(ibv_context*, ibv_async_event*)>("ibv_get_async_event")(context, event);
}

__attribute__((visibility("default"))) void ibv_ack_async_event(ibv_async_event* event) {
  if (!ours) real<void(ibv_async_event*)>("ibv_ack_async_event")(event);
}

__attribute__((visibility("default"))) int ibv_modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
  const int result = real<int(ibv_qp*, ibv_qp_attr*, int)>("ibv_modify_qp")(pair, attributes, mask);
  if (result == 0 && pair->qp_type == IBV_QPT_RC && (mask & IBV_QP_STATE) != 0 && attributes->qp_state == IBV_QPS_RTS) {
    const std::lock_guard lock(mutex);
    devices()[pair->context].pair = pair;
  }
  return result;
}

__attribute__((visibility("default"))) int ibv_close_device(ibv_context* context) {
  {
    const std::lock_guard lock(mutex);
    devices().erase(context);
  }
  return real<int(ibv_context*)>("ibv_close_device")(context);
}

}  // extern "C"

namespace test {

void raiseDeviceEvent(ibv_event_type type, int port) {
  const std::lock_guard lock(mutex);
  for (auto& [context, device] : devices()) {
    ibv_async_event event = {};
    event.event_type = type;
    if (type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_QP_ACCESS_ERR) {
      event.element.qp = device.pair;
    } else {
      event.element.port_num = port;
    }
    device.events.push_back(event);
  }
}

}  // namespace test
