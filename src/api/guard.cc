// See guard.h.
#include "api/guard.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "host/log.h"

namespace mk {
namespace {

struct LastError {
  std::string text;
  const char* fixed = "";  // used instead of an empty `text`: setting it cannot fail
};
thread_local LastError lastError;

struct Header {
  uint32_t structSize;
  uint32_t structId;
};

constexpr struct {
  uint32_t id;
  const char* type;
} structNames[] = {
    {MK_ID_CONFIG, "mkConfig_t"},
    {MK_ID_COMM_INFO, "mkCommInfo_t"},
    {MK_ID_BUILD_INFO, "mkBuildInfo_t"},
    {MK_ID_TRANSPORT_INFO, "mkTransportInfo_t"},
    {MK_ID_PARAM_INFO, "mkParamInfo_t"},
    {MK_ID_TUNE, "mkTune_t"},
    {MK_ID_GEMM_ALL_REDUCE_ARGS, "mkGemmAllReduceArgs_t"},
    {MK_ID_GEMM_REDUCE_SCATTER_ARGS, "mkGemmReduceScatterArgs_t"},
    {MK_ID_ALL_GATHER_GEMM_ARGS, "mkAllGatherGemmArgs_t"},
};

const char* structName(uint32_t id) {
  for (const auto& s : structNames)
    if (s.id == id) return s.type;
  return "unknown";
}

void keep(const char* function, const char* text) noexcept {
  try {
    const std::string prefix = std::string(function) + ": ";
    // A failure that comes back from another rank, or from a stream, has been through here before.
    lastError.text = std::string_view(text).substr(0, prefix.size()) == prefix ? text : prefix + text;
  } catch (const std::bad_alloc&) {
    lastError.text.clear();
    lastError.fixed = "out of memory, also for the text of the error";
  }
}

mkResult_t finish(const char* function, mkResult_t code, const char* text) noexcept {
  keep(function, text);
  try {
    MK_INFO(init, "%s: %s (%s)", function, text, mkGetErrorString(code));
  } catch (...) {
    // The log could not be set up.  The caller gets the error all the same.
  }
  return code;
}

}  // namespace

mkResult_t translateException(const char* function) noexcept {
  try {
    throw;
  } catch (const Error& e) {
    return finish(function, e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return finish(function, mkErrorSystem, "out of memory");
  } catch (const std::exception& e) {
    return finish(function, mkErrorInternal, e.what());
  } catch (...) {
    return finish(function, mkErrorInternal, "an exception of unknown type");
  }
}

const char* threadLastError() noexcept { return lastError.text.empty() ? lastError.fixed : lastError.text.c_str(); }

void requirePointer(const void* pointer, const char* name, const char* legal) {
  if (pointer == nullptr) fail(mkErrorInvalidArgument, "%s is NULL; legal is %s", name, legal);
}

uint32_t checkStruct(const void* user, uint32_t id, const char* name) {
  if (user == nullptr)
    fail(mkErrorInvalidArgument, "%s is NULL; legal is a pointer to an initialised %s", name, structName(id));
  Header header = {};
  std::memcpy(&header, user, sizeof(header));
  if (header.structId != id)
    fail(mkErrorInvalidArgument, "%s->structId is 0x%08x (%s); legal is 0x%08x (%s), see MK_INIT", name,
         header.structId, structName(header.structId), id, structName(id));
  if (header.structSize < sizeof(Header) || header.structSize > maxStructBytes)
    fail(mkErrorInvalidArgument, "%s->structSize is %u; legal is sizeof(%s) of the caller's header, %zu to %u", name,
         header.structSize, structName(id), sizeof(Header), maxStructBytes);
  return header.structSize;
}

void copyStructIn(const void* user, void* ours, uint32_t bytes, uint32_t id, const char* name) {
  const uint32_t userBytes = checkStruct(user, id, name);
  const auto* from = static_cast<const unsigned char*>(user);
  for (uint32_t i = bytes; i < userBytes; ++i)
    if (from[i] != 0)
      fail(mkErrorVersion,
           "%s (%s) has a field at byte %u that is not zero; this library, version %d.%d.%d, knows %u bytes of it and "
           "the "
           "caller was built for a newer one",
           name, structName(id), i, MK_MAJOR, MK_MINOR, MK_PATCH, bytes);
  std::memset(ours, 0, bytes);
  std::memcpy(ours, user, std::min(bytes, userBytes));
  const Header header = {bytes, id};
  std::memcpy(ours, &header, sizeof(header));
}

void copyStructOut(void* user, const void* ours, uint32_t bytes, uint32_t id, const char* name) {
  const uint32_t userBytes = checkStruct(user, id, name);
  const uint32_t common = std::min(bytes, userBytes);
  auto* to = static_cast<unsigned char*>(user);
  const auto* from = static_cast<const unsigned char*>(ours);
  std::memcpy(to + sizeof(Header), from + sizeof(Header), common - sizeof(Header));
  std::memset(to + common, 0, userBytes - common);
}

}  // namespace mk
