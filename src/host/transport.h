// Finds, loads and chooses network plugins (include/mkernel/transport.h).  Search order for libmkernel-NAME.so: absolute
// path or the directories of MKERNEL_PLUGIN_PATH, `mkernel/` beside the library, the directory compiled in.  Every rejected
// plugin keeps its reason for mkTransportQuery; a transport that was asked for by name never falls back.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mkernel/transport.h"

namespace mk {

// A loaded plugin and its context, shared by communicators and never unloaded while one uses it.
struct Transport {
  std::string name, path;
  const mkTransport_t* table = nullptr;
  void* context = nullptr;
  mkTransportProperties_t properties = {};
  int devices = 0;
};

struct TransportStatus {
  std::string name, path, status;  // status "": usable
  uint32_t abiMajor = 0, abiMinor = 0, devices = 0, contract = 0, immediateBits = 0, devicePosted = 0;
};

// name "": the best that finds a device, in the order ibverbs, efa, loopback.  Throws Error(mkErrorTransport), with all reasons.
std::shared_ptr<Transport> acquireTransport(const std::string& name);

// What was found or tried so far; tries the known plugins if nothing was.  Any thread.
std::vector<TransportStatus> transportStatuses();

}  // namespace mk
