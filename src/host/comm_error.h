// The one thing src/api/info.cc needs to know of communicators, whose structure is private to src/host/comm.h.
#pragma once

#include <string>

#include "mkernel.h"

namespace mk {

// Text of the communicator's last failure, asynchronous ones included; "" if there was none.  Any thread.  Throws Error if
// the handle is none.
std::string commLastError(mkComm_t handle);

}  // namespace mk
