// Asynchronous events for real RDMA devices: stands between libibverbs and the plugin, for programs that are linked with it
// and export their symbols.
#pragma once

#include <infiniband/verbs.h>

namespace test {

// For every device that is open in this process: of its port `port`, or of the last of its reliable connections that was made.
void raiseDeviceEvent(ibv_event_type type, int port);

}  // namespace test
