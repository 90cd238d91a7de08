// The border of the C interface: every exported function runs its body in guarded(), the one place where exceptions become
// result codes, and passes the caller's structures through readStruct() or writeStruct(), which let callers and libraries
// of different versions understand each other (ABI.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "host/error.h"
#include "mkernel.h"

namespace mk {

// ---- Exceptions and the calling thread's last error ---------------------------------------------------------------

// Inside a catch block: turns the current exception into a code, and keeps "function: text" for mkGetLastError(NULL).
mkResult_t translateException(const char* function) noexcept;

// What mkGetLastError(NULL) returns.  A success does not clear it.
const char* threadLastError() noexcept;

// Runs the body of the exported function of this name.
template <class Body>
mkResult_t guarded(const char* function, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return mkSuccess;
  } catch (...) {
    return translateException(function);
  }
}

// Refuses NULL for the argument of this name; `legal` says what it must be: "a pointer to an int".
void requirePointer(const void* pointer, const char* name, const char* legal);

// ---- Structures -----------------------------------------------------------------------------------------------------

// The identifier a structure must carry.
template <class T>
inline constexpr uint32_t structIdOf = 0;
template <>
inline constexpr uint32_t structIdOf<mkConfig_t> = MK_ID_CONFIG;
template <>
inline constexpr uint32_t structIdOf<mkCommInfo_t> = MK_ID_COMM_INFO;
template <>
inline constexpr uint32_t structIdOf<mkBuildInfo_t> = MK_ID_BUILD_INFO;
template <>
inline constexpr uint32_t structIdOf<mkTransportInfo_t> = MK_ID_TRANSPORT_INFO;
template <>
inline constexpr uint32_t structIdOf<mkParamInfo_t> = MK_ID_PARAM_INFO;
template <>
inline constexpr uint32_t structIdOf<mkTune_t> = MK_ID_TUNE;
template <>
inline constexpr uint32_t structIdOf<mkGemmAllReduceArgs_t> = MK_ID_GEMM_ALL_REDUCE_ARGS;
template <>
inline constexpr uint32_t structIdOf<mkGemmReduceScatterArgs_t> = MK_ID_GEMM_REDUCE_SCATTER_ARGS;
template <>
inline constexpr uint32_t structIdOf<mkAllGatherGemmArgs_t> = MK_ID_ALL_GATHER_GEMM_ARGS;

// A structure larger than this is taken for an uninitialised one.
inline constexpr uint32_t maxStructBytes = 4096;

// Checks pointer, structId and structSize of the caller's structure `name`; returns its structSize.  Throws Error.
uint32_t checkStruct(const void* user, uint32_t id, const char* name);
// As readStruct and writeStruct below; `bytes` is the size of this library's structure.
void copyStructIn(const void* user, void* ours, uint32_t bytes, uint32_t id, const char* name);
void copyStructOut(void* user, const void* ours, uint32_t bytes, uint32_t id, const char* name);

// The caller's structure as this library knows it.  Fields beyond a shorter caller's are zero, which means default; a
// longer caller's further fields must be zero, else mkErrorVersion: this library would not do what they ask for.
template <class T>
T readStruct(const T* user, const char* name) {
  static_assert(structIdOf<T> != 0, "a structure without an identifier");
  T ours = {};
  copyStructIn(user, &ours, sizeof(T), structIdOf<T>, name);
  return ours;
}

// Fills in the caller's structure: a shorter caller's gets what fits, a longer caller's further fields are set to zero,
// which there means "not known to this library".  The caller's structSize and structId stay.
template <class T>
void writeStruct(T* user, const T& ours, const char* name) {
  static_assert(structIdOf<T> != 0, "a structure without an identifier");
  copyStructOut(user, &ours, sizeof(T), structIdOf<T>, name);
}

}  // namespace mk
