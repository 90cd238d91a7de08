// See hca_filter.h.
#include "common/hca_filter.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "common/failure.h"

namespace mk::plugin {

HcaFilter::HcaFilter(const std::string& text) {
  size_t at = 0;
  if (at < text.size() && text[at] == '^') exclude_ = true, ++at;
  if (at < text.size() && text[at] == '=') exact_ = true, ++at;
  for (size_t end = 0; at < text.size(); at = end + 1) {
    end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    if (item.empty()) continue;
    const size_t colon = item.find(':');
    Entry entry{item.substr(0, colon), -1};
    if (colon != std::string::npos) {
      const std::string port = item.substr(colon + 1);
      const bool digits = !port.empty() && port.size() <= 3 && std::all_of(port.begin(), port.end(), [](char c) {
        return std::isdigit(static_cast<unsigned char>(c)) != 0;
      });
      entry.port = digits ? std::atoi(port.c_str()) : 0;
      if (entry.port < 1 || entry.port > 255)
        fail(mkErrorInvalidArgument, "MKERNEL_IB_HCA=%s: '%s' has no port number from 1 to 255 after the colon",
             text.c_str(), item.c_str());
    }
    const bool word = !entry.name.empty() && std::none_of(entry.name.begin(), entry.name.end(), [](char c) {
      return c == '^' || c == '=' || std::isspace(static_cast<unsigned char>(c)) != 0;
    });
    if (!word)
      fail(mkErrorInvalidArgument,
           "MKERNEL_IB_HCA=%s: '%s' is not NAME or NAME:PORT; ^ (exclude) and = (whole names) stand once, in front of "
           "the list, in this order",
           text.c_str(), item.c_str());
    entries_.push_back(entry);
  }
}

bool HcaFilter::selects(const std::string& device, int port) const {
  if (entries_.empty()) return true;
  const bool listed = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    const bool named = exact_ ? device == entry.name : device.rfind(entry.name, 0) == 0;
    return named && (entry.port == -1 || entry.port == port);
  });
  return listed != exclude_;
}

}  // namespace mk::plugin
