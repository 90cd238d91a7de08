// Memory that other processes of the node can map: an anonymous file (memfd) and mappings of it.  The heap and mkMemAlloc are
// made of it on the CPU platform.  A mapping is made once per process: ranks that are threads of one process share the
// object, so that ThreadSanitizer sees every access to it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "host/unique_fd.h"

namespace mk {

class SharedMemory {
 public:
  // A new file of this size, mapped but backed by nothing and not accessible until back() is called.  Throws Error.
  static std::shared_ptr<SharedMemory> create(const std::string& name, uint64_t bytes);
  // Maps a peer's file; likewise not accessible yet.
  static std::shared_ptr<SharedMemory> attach(UniqueFd fd, uint64_t bytes, const std::string& name);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Takes memory for [offset, offset + bytes), page aligned, and makes it accessible.  Only on the creating side; throws
  // mkErrorSystem if there is none left, and then nothing is lost.
  void back(uint64_t offset, uint64_t bytes);
  // Makes what the creator has backed accessible here.
  void open(uint64_t offset, uint64_t bytes);

  char* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  bool created() const { return created_; }

 private:
  SharedMemory(UniqueFd fd, uint64_t bytes, std::string name, bool created);

  UniqueFd fd_;
  uint64_t bytes_;
  std::string name_;
  bool created_;
  char* base_ = nullptr;
};

}  // namespace mk
