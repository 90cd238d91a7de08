// MKERNEL_IB_HCA: which ports may be used, in NCCL's syntax.  A comma list of NAME or NAME:PORT; names are prefixes, or with
// a leading = whole names; with a leading ^ (before =) the list excludes.  Empty: everything.
#pragma once

#include <string>
#include <vector>

namespace mk::plugin {

class HcaFilter {
 public:
  // Throws Failure naming the entry that makes no sense.
  explicit HcaFilter(const std::string& text);
  bool selects(const std::string& device, int port) const;

 private:
  struct Entry {
    std::string name;
    int port;  // -1: any
  };
  bool exclude_ = false, exact_ = false;
  std::vector<Entry> entries_;
};

}  // namespace mk::plugin
