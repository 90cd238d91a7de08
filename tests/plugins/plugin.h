// A transport plugin as a test sees it: loaded by path, with a parameter map in place of the library's parameters.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "mkernel.h"
#include "mkernel/transport.h"

namespace test {

using Params = std::map<std::string, std::string>;

// What a plugin did wrong.
class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws CheckFailed with the formatted text unless the condition holds.
[[gnu::format(printf, 2, 3)]] void expect(bool condition, const char* fmt, ...);

// A loaded plugin, initialised; one at a time per process.
class Plugin {
 public:
  Plugin(const std::string& path, const Params& params);
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const mkTransport_t& table() const { return *table_; }
  void* context() const { return context_; }
  const mkTransportProperties_t& properties() const { return properties_; }
  // Throws CheckFailed with lastError unless the result is success.
  void succeed(int result, const char* what) const;

 private:
  void* object_ = nullptr;
  const mkTransport_t* table_ = nullptr;
  void* context_ = nullptr;
  mkTransportProperties_t properties_ = {};
};

// What plugins have logged in this process since the last call, one line each.
std::vector<std::string> takeLog();

}  // namespace test
