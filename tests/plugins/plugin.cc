// See plugin.h.
#include "plugin.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <utility>

namespace test {
namespace {

std::mutex logMutex;
std::vector<std::string>& logLines() {
  static std::vector<std::string> lines;
  return lines;
}

void log(int, const char*, int, const char* text) {
  const std::lock_guard lock(logMutex);
  logLines().emplace_back(text);
}

// A plugin's param function has no argument of its own to find a map by.
Params currentParams;

const char* param(const char* name) {
  const auto found = currentParams.find(name);
  return found != currentParams.end() ? found->second.c_str() : nullptr;
}

constexpr mkTransportHost_t kHost = {
    sizeof(mkTransportHost_t), MK_TRANSPORT_ABI_MAJOR, MK_TRANSPORT_ABI_MINOR, 0, log, param};

}  // namespace

void expect(bool condition, const char* fmt, ...) {
  if (condition) return;
  char text[1024];
  va_list list;
  va_start(list, fmt);
  std::vsnprintf(text, sizeof(text), fmt, list);
  va_end(list);
  throw CheckFailed(text);
}

Plugin::Plugin(const std::string& path, const Params& params) {
  object_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object_ == nullptr) throw CheckFailed(dlerror());
  try {
    table_ = static_cast<const mkTransport_t*>(dlsym(object_, MK_TRANSPORT_SYMBOL));
    expect(table_ != nullptr, "%s exports no %s", path.c_str(), MK_TRANSPORT_SYMBOL);
    currentParams = params;
    succeed(table_->init(&kHost, &context_), "init");
    properties_.structSize = sizeof(properties_);
    succeed(table_->properties(context_, &properties_), "properties");
    expect(properties_.maxBatch >= 1 && properties_.maxOutstanding >= 1 && properties_.maxBytes >= 1,
           "maxBatch %u, maxOutstanding %u or maxBytes is zero", properties_.maxBatch, properties_.maxOutstanding);
  } catch (...) {
    if (context_ != nullptr) table_->fini(context_);
    dlclose(object_);
    throw;
  }
}

Plugin::~Plugin() {
  table_->fini(context_);
  dlclose(object_);
}

void Plugin::succeed(int result, const char* what) const {
  expect(result == mkSuccess, "%s: result %d: %s", what, result, table_->lastError());
}

std::vector<std::string> takeLog() {
  const std::lock_guard lock(logMutex);
  return std::exchange(logLines(), {});
}

}  // namespace test
