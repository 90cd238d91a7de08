// See library.h.
#include "library.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "common/failure.h"

namespace mk::plugin::efa {
namespace {

bool sameAction(const struct sigaction& a, const struct sigaction& b) {
  return a.sa_flags == b.sa_flags && a.sa_sigaction == b.sa_sigaction;
}

}  // namespace

SignalGuard::SignalGuard() {
  // At least this thread does not run a handler that is about to go.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask_);
  for (int signal = 1; signal < _NSIG; ++signal) {
    sigaction(signal, nullptr, &before_[signal]);
  }
}

SignalGuard::~SignalGuard() {
  for (int signal = 1; signal < _NSIG; ++signal) {
    struct sigaction now = {};
    if (sigaction(signal, nullptr, &now) == 0 && !sameAction(now, before_[signal]))
      sigaction(signal, &before_[signal], nullptr);
  }
  pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
}

Library::Library(const std::string& file) {
  // It has threads and handlers of its own at exit, so once loaded it stays.
  void* object = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (object == nullptr) {
    const char* words = dlerror();
    fail(mkErrorSystem, "libfabric cannot be loaded: %s", words != nullptr ? words : "the loader gives no reason");
  }
  const auto find = [&](auto& function, const char* name) {
    void* address = dlsym(object, name);
    if (address == nullptr) fail(mkErrorVersion, "%s exports no %s: not libfabric", file.c_str(), name);
    std::memcpy(&function, &address, sizeof(function));
  };
  find(getinfo, "fi_getinfo");
  find(freeinfo, "fi_freeinfo");
  find(dupinfo, "fi_dupinfo");
  find(fabric, "fi_fabric");
  find(version, "fi_version");
  find(strerror, "fi_strerror");
}

std::string Library::describe(int64_t result) const {
  const int error = static_cast<int>(result < 0 ? -result : result);
  const char* text = strerror(error);
  return format("%s (-%d)", text != nullptr ? text : "unknown error", error);
}

uint32_t Library::requestedVersion() const {
  const uint32_t headers = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
  return std::min(version(), std::max<uint32_t>(headers, FI_VERSION(1, 18)));
}

}  // namespace mk::plugin::efa
