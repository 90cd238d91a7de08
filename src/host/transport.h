// Finds, loads and chooses network plugins (include/mkernel/transport.h).  Search order for libmkernel-NAME.so: the
// entries of MKERNEL_PLUGIN_PATH (directories, or absolute paths of plugins), `mkernel/` beside the library, the directory
// compiled in.  The first file found decides; every rejected plugin keeps its reason for mkTransportQuery; a transport
// that was asked for by name never falls back.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "mkernel/transport.h"

namespace mk {

// A loaded plugin and its context, shared by communicators and never unloaded while one uses it.
struct Transport {
  std::string name, path;
  // The library's own copy: entries that the plugin's table is too short for are NULL.
  const mkTransport_t* table = nullptr;
  void* context = nullptr;
  mkTransportProperties_t properties = {};
  int devices = 0;
};

// The strings live as long as the loader (the process, for the functions below).
struct TransportStatus {
  const char* name = "";
  const char* path = "";    // file it was loaded from, or the last one tried
  const char* status = "";  // "": usable
  uint32_t abiMajor = 0, abiMinor = 0, devices = 0, contract = 0, immediateBits = 0, devicePosted = 0;
};

// name "": the best that finds a device, in the order ibverbs, efa, loopback.  Throws Error(mkErrorTransport), with all
// reasons.  Any thread.
std::shared_ptr<Transport> acquireTransport(const std::string& name);

// What was found or tried so far, in the order of the first try; tries the known plugins if nothing was.  Any thread.
std::vector<TransportStatus> transportStatuses();

// The two functions above over one loader that lives as long as the process; tests make loaders of their own.
class TransportLoader {
 public:
  // places: directories and plugin files, in the order of search.  automatic: the names tried for "", best first.
  TransportLoader(std::vector<std::string> places, std::vector<std::string> automatic);

  std::shared_ptr<Transport> acquire(const std::string& name);
  std::vector<TransportStatus> statuses();

 private:
  struct Entry {
    TransportStatus status;
    std::shared_ptr<Transport> transport;  // null: rejected, tried again by the next acquire
  };
  Entry& tryName(const std::string& name);
  std::string load(const std::string& name, Entry& entry);
  const char* keep(const std::string& text) { return strings_.insert(text).first->c_str(); }

  const std::vector<std::string> places_, automatic_;
  std::mutex mutex_;
  std::set<std::string> strings_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

// Where the process's loader looks.  libraryFile: of this library; privileged (set-user-id and the like): pluginPath, which
// the environment gives, counts for nothing.
std::vector<std::string> transportPlaces(const std::string& pluginPath, const std::string& libraryFile,
                                         bool privileged);

}  // namespace mk
