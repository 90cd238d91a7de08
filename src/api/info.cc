// The exported functions that tell something and change nothing: version, build, errors, parameters, transports.
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "api/guard.h"
#include "host/comm_error.h"
#include "host/cuda.h"
#include "host/params.h"
#include "host/transport.h"
#include "mkernel.h"
#include "mkernel/transport.h"
#include "revision.h"

namespace {

using mk::guarded;

// Holds a communicator's text for the caller of mkGetLastError, until the thread's next call.
thread_local std::string commText;

// A copy of the text that lives as long as the library.  Equal texts share one, so that repeated queries do not grow.
const char* keepForever(const std::string& text) {
  static std::mutex mutex;
  static auto* const texts = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return texts->insert(text).first->c_str();
}

int requireIndex(int index, size_t count, const char* what) {
  if (count == 0) mk::fail(mkErrorInvalidArgument, "index is %d; none is legal: there are no %s", index, what);
  if (index < 0 || static_cast<size_t>(index) >= count)
    mk::fail(mkErrorInvalidArgument, "index is %d; legal is 0 to %zu: there are %zu %s", index, count - 1, count, what);
  return index;
}

}  // namespace

extern "C" {

mkResult_t mkGetVersion(int* version) {
  return guarded("mkGetVersion", [&] {
    mk::requirePointer(version, "version", "a pointer to an int");
    *version = MK_VERSION_CODE;
  });
}

mkResult_t mkGetBuildInfo(mkBuildInfo_t* info) {
  return guarded("mkGetBuildInfo", [&] {
    mkBuildInfo_t ours = {};
    ours.version = MK_VERSION_CODE;
    ours.cudaVersion = static_cast<uint32_t>(mk::cuda::buildVersion());
    ours.revision = MK_REVISION;
    ours.compiler = MK_COMPILER;
    ours.platforms = mk::cuda::buildVersion() != 0 ? "cpu,cuda" : "cpu";
    ours.cudaArchs = mk::cuda::buildArchs();
    ours.transportAbiMajor = MK_TRANSPORT_ABI_MAJOR;
    ours.transportAbiMinor = MK_TRANSPORT_ABI_MINOR;
    mk::writeStruct(info, ours, "info");
  });
}

const char* mkGetErrorString(mkResult_t result) {
  switch (result) {
    case mkSuccess:
      return "success";
    case mkErrorUnhandledCuda:
      return "CUDA error";
    case mkErrorSystem:
      return "system error";
    case mkErrorInternal:
      return "internal error";
    case mkErrorInvalidArgument:
      return "invalid argument";
    case mkErrorInvalidUsage:
      return "invalid usage";
    case mkErrorRemote:
      return "another rank failed, left or died";
    case mkErrorInProgress:
      return "in progress";
    case mkErrorTimeout:
      return "no progress within the deadline";
    case mkErrorVersion:
      return "version not understood";
    case mkErrorNotSupported:
      return "not supported";
    case mkErrorNotReserved:
      return "symmetric heap too small";
    case mkErrorNotRegistered:
      return "memory not registered";
    case mkErrorTransport:
      return "transport error";
    case mkErrorRevoked:
      return "communicator revoked";
    case mkErrorCapture:
      return "not legal during stream capture";
  }
  return "unknown result code";
}

const char* mkGetLastError(mkComm_t comm) {
  if (comm == nullptr) return mk::threadLastError();
  const mkResult_t result = guarded("mkGetLastError", [&] { commText = mk::commLastError(comm); });
  return result == mkSuccess ? commText.c_str() : mk::threadLastError();
}

mkResult_t mkParamCount(int* count) {
  return guarded("mkParamCount", [&] {
    mk::requirePointer(count, "count", "a pointer to an int");
    *count = static_cast<int>(mk::paramDescriptions().size());
  });
}

mkResult_t mkParamGet(int index, mkParamInfo_t* info) {
  return guarded("mkParamGet", [&] {
    const std::vector<mk::ParamDescription>& all = mk::paramDescriptions();
    const mk::ParamDescription& param = all[static_cast<size_t>(requireIndex(index, all.size(), "parameters"))];
    mkParamInfo_t ours = {};
    ours.name = param.name;
    ours.type = param.type;
    ours.defaultValue = param.defaultValue.c_str();
    ours.value = param.value.c_str();
    ours.source = param.source.c_str();
    ours.help = param.help;
    mk::writeStruct(info, ours, "info");
  });
}

mkResult_t mkTransportCount(int* count) {
  return guarded("mkTransportCount", [&] {
    mk::requirePointer(count, "count", "a pointer to an int");
    *count = static_cast<int>(mk::transportStatuses().size());
  });
}

mkResult_t mkTransportQuery(int index, mkTransportInfo_t* info) {
  return guarded("mkTransportQuery", [&] {
    const std::vector<mk::TransportStatus> all = mk::transportStatuses();
    const mk::TransportStatus& status = all[static_cast<size_t>(requireIndex(index, all.size(), "transports"))];
    mkTransportInfo_t ours = {};
    ours.name = keepForever(status.name);
    ours.path = keepForever(status.path);
    ours.status = keepForever(status.status);
    ours.abiMajor = status.abiMajor;
    ours.abiMinor = status.abiMinor;
    ours.devices = status.devices;
    ours.contract = status.contract;
    ours.immediateBits = status.immediateBits;
    ours.devicePosted = status.devicePosted;
    mk::writeStruct(info, ours, "info");
  });
}

}  // extern "C"
