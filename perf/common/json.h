// Writes one JSON object on one line.  Called by report.cc.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace mk::perf {

class JsonObject {
 public:
  JsonObject& add(const char* name, const std::string& value) { return raw(name, quote(value)); }
  JsonObject& add(const char* name, const char* value) { return raw(name, quote(value)); }
  JsonObject& add(const char* name, bool value) { return raw(name, value ? "true" : "false"); }
  JsonObject& add(const char* name, int value) { return raw(name, std::to_string(value)); }
  JsonObject& add(const char* name, int64_t value) { return raw(name, std::to_string(value)); }
  JsonObject& add(const char* name, uint32_t value) { return raw(name, std::to_string(value)); }
  JsonObject& add(const char* name, uint64_t value) { return raw(name, std::to_string(value)); }
  JsonObject& add(const char* name, double value) {
    if (!std::isfinite(value)) return raw(name, "null");  // JSON has no NaN and no infinity
    char text[40];
    snprintf(text, sizeof(text), "%.17g", value);
    return raw(name, text);
  }
  JsonObject& null(const char* name) { return raw(name, "null"); }
  // A value that is JSON already: an object or an array.
  JsonObject& raw(const char* name, const std::string& json) {
    body_ += (body_.empty() ? "" : ", ") + quote(name) + ": " + json;
    return *this;
  }
  std::string text() const { return "{" + body_ + "}"; }

  static std::string array(const std::vector<std::string>& items) {
    std::string result;
    for (const std::string& item : items) result += (result.empty() ? "" : ", ") + item;
    return "[" + result + "]";
  }

 private:
  static std::string quote(const std::string& text) {
    std::string result = "\"";
    for (char c : text) {
      if (c == '"' || c == '\\') {
        result += '\\';
        result += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        char escape[8];
        snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
        result += escape;
      } else {
        result += c;
      }
    }
    return result + "\"";
  }

  std::string body_;
};

}  // namespace mk::perf
