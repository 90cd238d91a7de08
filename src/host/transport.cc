// The plugin loader: see transport.h.  Called by the communicator's set-up and by mkTransportCount and mkTransportQuery.
#include "host/transport.h"

#include <dlfcn.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "host/error.h"
#include "host/log.h"
#include "host/params.h"

namespace mk {
namespace {

namespace fs = std::filesystem;

// ---- What the library lends to plugins -----------------------------------------------------------------------------

void hostLog(int level, const char* file, int line, const char* text) {
  const LogLevel known = static_cast<LogLevel>(std::clamp(level, 1, 3));
  if (logEnabled(known, Subsys::net)) logLine(known, Subsys::net, file, line, "%s", text);
}

const char* hostParam(const char* name) {
  try {
    for (const ParamDescription& description : paramDescriptions())
      if (std::strcmp(description.name, name) == 0) return description.value.c_str();
  } catch (const std::exception&) {
    // A plugin cannot be handed an exception; without a value it takes its default.
  }
  return nullptr;
}

constexpr mkTransportHost_t kHost = {
    sizeof(mkTransportHost_t), MK_TRANSPORT_ABI_MAJOR, MK_TRANSPORT_ABI_MINOR, 0, hostLog, hostParam};

// ---- Checks of a table ---------------------------------------------------------------------------------------------

struct RequiredEntry {
  size_t offset;
  const char* name;
};
#define MK_REQUIRED(entry) \
  { offsetof(mkTransport_t, entry), #entry }
constexpr RequiredEntry kRequired[] = {
    MK_REQUIRED(name),
    MK_REQUIRED(init),
    MK_REQUIRED(fini),
    MK_REQUIRED(lastError),
    MK_REQUIRED(deviceCount),
    MK_REQUIRED(deviceInfo),
    MK_REQUIRED(properties),
    MK_REQUIRED(open),
    MK_REQUIRED(connect),
    MK_REQUIRED(registerMemory),
    MK_REQUIRED(deregisterMemory),
    MK_REQUIRED(importMemory),
    MK_REQUIRED(releaseMemory),
    MK_REQUIRED(post),
    MK_REQUIRED(poll),
    MK_REQUIRED(close),
};
#undef MK_REQUIRED
// What every table of this major has; what follows is optional or came with a later minor version.
constexpr size_t kRequiredBytes = offsetof(mkTransport_t, close) + sizeof(mkTransport_t::close);

bool entryMissing(const mkTransport_t& table, size_t offset) {
  void* entry = nullptr;
  std::memcpy(&entry, reinterpret_cast<const char*>(&table) + offset, sizeof(entry));
  return entry == nullptr;
}

// A loaded shared object, its table and its context; taken down in reverse order.
struct LoadedTransport : Transport {
  void* object = nullptr;
  mkTransport_t known = {};

  LoadedTransport() = default;
  LoadedTransport(const LoadedTransport&) = delete;
  LoadedTransport& operator=(const LoadedTransport&) = delete;
  ~LoadedTransport() {
    if (context != nullptr) known.fini(context);
    if (object != nullptr) dlclose(object);
  }
};

// "" or why the table is not usable.  Copies what this library knows of it.
std::string checkTable(const mkTransport_t* table, const std::string& name, LoadedTransport& loaded) {
  // These three words come first in every version; nothing else may be read before the size is known.
  if (table->structSize >= offsetof(mkTransport_t, reserved)) {
    if (table->abiMajor != MK_TRANSPORT_ABI_MAJOR)
      return format("%s has interface version %u.%u, this library needs %u.x", MK_TRANSPORT_SYMBOL, table->abiMajor,
                    table->abiMinor, MK_TRANSPORT_ABI_MAJOR);
  }
  if (table->structSize < kRequiredBytes)
    return format("%s is truncated: %u bytes, at least %zu are needed", MK_TRANSPORT_SYMBOL, table->structSize,
                  kRequiredBytes);
  std::memcpy(&loaded.known, table, std::min<size_t>(table->structSize, sizeof(mkTransport_t)));
  for (const RequiredEntry& entry : kRequired)
    if (entryMissing(loaded.known, entry.offset))
      return format("%s lacks the required entry '%s'", MK_TRANSPORT_SYMBOL, entry.name);
  if (name != loaded.known.name) return format("the file holds the transport '%s'", loaded.known.name);
  return "";
}

std::string checkProperties(const mkTransportProperties_t& properties) {
  if (properties.contract != MK_CONTRACT_ORDERED && properties.contract != MK_CONTRACT_COMPLETION)
    return format("unknown contract %u; known: 1 (ordered), 2 (completion)", properties.contract);
  if (properties.contract == MK_CONTRACT_COMPLETION && properties.immediateBits < 32)
    return format("immediates of %u bits; the completion contract needs 32", properties.immediateBits);
  if (properties.maxBatch < 1 || properties.maxOutstanding < 1 || properties.maxBytes < 1)
    return format("maxBatch %u, maxOutstanding %u, maxBytes %llu: each must be at least 1", properties.maxBatch,
                  properties.maxOutstanding, static_cast<unsigned long long>(properties.maxBytes));
  return "";
}

// "path: reason", where the loader's own words do not begin with the path already.
std::string describe(const TransportStatus& status) {
  const std::string reason = status.status, path = status.path;
  return path.empty() || reason.rfind(path, 0) == 0 ? reason : path + ": " + reason;
}

const char* contractName(uint32_t contract) { return contract == MK_CONTRACT_ORDERED ? "ordered" : "completion"; }

// ---- Files ---------------------------------------------------------------------------------------------------------

std::string fileName(const std::string& name) { return "libmkernel-" + name + ".so"; }

bool isPluginFile(const std::string& place) {
  std::error_code error;
  return fs::path(place).extension() == ".so" && !fs::is_directory(place, error);
}

// The name becomes part of a file name, so it must not lead elsewhere.
bool validName(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

// This library's file; empty if it cannot be told.
std::string libraryFile() {
  Dl_info info = {};
  if (dladdr(&kHost, &info) == 0 || info.dli_fname == nullptr) return "";
  // Linked statically into a program that was found through PATH, the name has no directory.
  const fs::path file = std::strchr(info.dli_fname, '/') != nullptr ? info.dli_fname : "/proc/self/exe";
  std::error_code error;
  const fs::path real = fs::canonical(file, error);
  return error ? "" : real.string();
}

}  // namespace

// ---- Loader --------------------------------------------------------------------------------------------------------

TransportLoader::TransportLoader(std::vector<std::string> places, std::vector<std::string> automatic)
    : places_(std::move(places)), automatic_(std::move(automatic)) {}

// Loads the plugin into the entry; "" or why it is not usable.
std::string TransportLoader::load(const std::string& name, Entry& entry) {
  if (!validName(name)) return "not a transport's name: only letters, digits, '_' and '-' are legal";
  std::string path, searched;
  for (const std::string& place : places_) {
    std::string candidate;
    if (!isPluginFile(place))
      candidate = (fs::path(place) / fileName(name)).string();
    else if (fs::path(place).filename() == fileName(name))
      candidate = place;
    else
      continue;
    searched += (searched.empty() ? "" : ":") + place;
    std::error_code error;
    if (fs::exists(candidate, error)) {
      path = candidate;
      break;
    }
  }
  if (path.empty()) return fileName(name) + " not found in: " + (searched.empty() ? "(no directory)" : searched);
  entry.status.path = keep(path);

  auto loaded = std::make_shared<LoadedTransport>();
  loaded->name = name;
  loaded->path = path;
  loaded->object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded->object == nullptr) {
    const char* words = dlerror();
    return words != nullptr ? words : "dlopen failed without a reason";
  }
  const auto* table = static_cast<const mkTransport_t*>(dlsym(loaded->object, MK_TRANSPORT_SYMBOL));
  if (table == nullptr) return std::string("exports no ") + MK_TRANSPORT_SYMBOL;
  if (table->structSize >= offsetof(mkTransport_t, reserved)) {
    entry.status.abiMajor = table->abiMajor;
    entry.status.abiMinor = table->abiMinor;
  }
  std::string reason = checkTable(table, name, *loaded);
  if (!reason.empty()) return reason;
  loaded->table = &loaded->known;

  const auto lastError = [&] {
    const char* text = loaded->known.lastError();
    return std::string(text != nullptr && *text != '\0' ? text : "no reason given");
  };
  int result = loaded->known.init(&kHost, &loaded->context);
  if (result != mkSuccess) {
    loaded->context = nullptr;  // nothing to take down
    return "initialisation failed: " + lastError();
  }
  result = loaded->known.deviceCount(loaded->context, &loaded->devices);
  if (result != mkSuccess) return "devices could not be listed: " + lastError();
  if (loaded->devices <= 0) return "no devices";
  loaded->properties.structSize = sizeof(loaded->properties);
  result = loaded->known.properties(loaded->context, &loaded->properties);
  if (result != mkSuccess) return "properties could not be read: " + lastError();
  reason = checkProperties(loaded->properties);
  if (!reason.empty()) return reason;

  entry.status.devices = static_cast<uint32_t>(loaded->devices);
  entry.status.contract = loaded->properties.contract;
  entry.status.immediateBits = loaded->properties.immediateBits;
  entry.status.devicePosted = loaded->properties.devicePosted;
  entry.transport = std::move(loaded);
  return "";
}

TransportLoader::Entry& TransportLoader::tryName(const std::string& name) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) { return name == entry->status.name; });
  Entry& entry = found != entries_.end() ? **found : *entries_.emplace_back(std::make_unique<Entry>());
  if (entry.transport != nullptr) return entry;
  entry.status = TransportStatus{};
  entry.status.name = keep(name);
  const std::string reason = load(name, entry);
  entry.status.status = keep(reason);
  if (reason.empty())
    MK_INFO(net, "transport %s: usable, interface %u.%u, %u device(s), from %s", name.c_str(), entry.status.abiMajor,
            entry.status.abiMinor, entry.status.devices, entry.status.path);
  else
    MK_INFO(net, "transport %s: not usable: %s", name.c_str(), describe(entry.status).c_str());
  return entry;
}

std::shared_ptr<Transport> TransportLoader::acquire(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::string reasons;
  for (const std::string& candidate : name.empty() ? automatic_ : std::vector<std::string>{name}) {
    const Entry& entry = tryName(candidate);
    if (entry.transport != nullptr) {
      const Transport& chosen = *entry.transport;
      MK_INFO(net, "using transport %s (%s contract, %s)", chosen.name.c_str(),
              contractName(chosen.properties.contract), name.empty() ? "the best found" : "asked for");
      return entry.transport;
    }
    if (!reasons.empty()) reasons += "; ";
    reasons += candidate + ": " + describe(entry.status);
  }
  if (name.empty()) fail(mkErrorTransport, "no network transport is usable: %s", reasons.c_str());
  fail(mkErrorTransport, "the network transport asked for (MKERNEL_NET, or transport in mkConfig_t) is not usable: %s",
       reasons.c_str());
}

std::vector<TransportStatus> TransportLoader::statuses() {
  const std::lock_guard lock(mutex_);
  if (entries_.empty())
    for (const std::string& name : automatic_) tryName(name);
  std::vector<TransportStatus> result;
  for (const auto& entry : entries_) result.push_back(entry->status);
  return result;
}

std::vector<std::string> transportPlaces(const std::string& pluginPath, const std::string& library, bool privileged) {
  std::vector<std::string> places;
  const auto add = [&](const fs::path& place) {
    if (std::find(places.begin(), places.end(), place.string()) == places.end()) places.push_back(place.string());
  };
  for (size_t begin = 0; !privileged && begin < pluginPath.size();) {
    const size_t end = std::min(pluginPath.find(':', begin), pluginPath.size());
    const std::string place = pluginPath.substr(begin, end - begin);
    std::error_code error;
    // A relative directory is taken from the current one, once, so that a later chdir changes nothing.
    if (!place.empty()) add(fs::absolute(place, error));
    begin = end + 1;
  }
  if (!library.empty()) add(fs::path(library).parent_path() / "mkernel");
  add(MK_PLUGIN_DIR);
  return places;
}

// ---- The process's loader ------------------------------------------------------------------------------------------

namespace {

// Never destroyed: at exit other threads may still be inside a plugin, and network libraries dislike being unloaded.
TransportLoader& processLoader() {
  // AT_SECURE is what secure_getenv goes by.
  static TransportLoader* const loader = new TransportLoader(
      transportPlaces(params().pluginPath, libraryFile(), getauxval(AT_SECURE) != 0), {"ibverbs", "efa", "loopback"});
  return *loader;
}

}  // namespace

std::shared_ptr<Transport> acquireTransport(const std::string& name) { return processLoader().acquire(name); }

std::vector<TransportStatus> transportStatuses() { return processLoader().statuses(); }

}  // namespace mk
