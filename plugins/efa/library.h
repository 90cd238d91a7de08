// libfabric as this plugin uses it: loaded when the plugin is initialised rather than linked, so that a machine without it
// gets a reason instead of a loader's failure, and so that what loading it does to the process can be undone.  Also what
// newer releases of it have and the headers this was built with may lack.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_ext.h>

#include <csignal>
#include <cstdint>
#include <string>

namespace mk::plugin::efa {

// Libraries that libfabric brings along (PSM, its shm provider) install handlers for SIGTERM, SIGSEGV and others, some of
// which call exit().  Whatever handlers change during its life, this puts back.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  struct sigaction before_[_NSIG] = {};
  sigset_t mask_ = {};
};

// The functions that libfabric exports; all others are reached through the objects it returns.
struct Library {
  // Throws Failure with the loader's words.
  explicit Library(const std::string& file);

  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;
  decltype(&::fi_version) version = nullptr;
  decltype(&::fi_strerror) strerror = nullptr;

  // "Resource temporarily unavailable (-11)" for a negative return value.
  std::string describe(int64_t result) const;
  // The interface version to ask for: of the headers, and at least 1.18 where the library has it, from which on providers
  // use the device's own RDMA writes wherever there are any.
  uint32_t requestedVersion() const;
  bool atLeast(uint32_t major, uint32_t minor) const { return FI_VERSION_GE(version(), FI_VERSION(major, minor)); }
};

// A structure that we hand to the library.  One newer than our headers may read, or write, members that they do not have yet;
// those are zero here.
template <typename T>
union Padded {
  Padded() : bytes{} {}
  T* operator->() { return &value; }

  T value;
  char bytes[sizeof(T) + 256];
};

// Interfaces newer than the oldest headers this builds with, under names of our own.  Their values are part of libfabric's
// binary interface; headers that have them are compared.
inline constexpr uint64_t kMrDmabuf = uint64_t{1} << 40;  // since 1.20
struct MrDmabuf {
  int fd;
  uint64_t offset;
  size_t length;
  void* base;
};
#ifdef FI_MR_DMABUF
static_assert(kMrDmabuf == FI_MR_DMABUF && sizeof(MrDmabuf) == sizeof(fi_mr_dmabuf));
inline constexpr bool kHeadersHaveDmabuf = true;
#else
inline constexpr bool kHeadersHaveDmabuf = false;
#endif

inline constexpr int kOptEfaEmulatedWrite = -(0xefa << 16) + 2;  // since 1.18
#ifdef MK_EFA_HEADERS_HAVE_EMULATED_WRITE
static_assert(kOptEfaEmulatedWrite == FI_OPT_EFA_EMULATED_WRITE);
#endif

}  // namespace mk::plugin::efa
