// A row of slots from rank 0 to rank 1, for the tests of single transports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "link.h"
#include "support/catch_compat.h"

namespace test {

#ifdef MK_TEST_LOOPBACK
inline void runLoopback(const Params& params, Mode mode, int count, const std::function<void(Rank&)>& body) {
  REQUIRE_NOTHROW(runWorld(Setup{MK_TEST_LOOPBACK, params}, mode, count, body));
}
#endif

// Slots of 64 bytes: a flag of 8 and a payload of the slot's number.  Rank 0 writes, rank 1 looks.
class Lane {
 public:
  Lane(Link& link, size_t slots, size_t payload = 48)
      : link_(link),
        stride_((8 + payload + 63) / 64 * 64),
        payload_(payload),
        in_(slots * stride_),
        out_(slots * stride_) {
    for (size_t slot = 0; slot < slots; ++slot)
      std::memset(out_.data() + slot * stride_, static_cast<int>(slot % 251 + 1), stride_);
    Bytes unused;
    local = link.registerMemory(out_.piece(), &unused);
    remote = link.share(in_.piece())[static_cast<size_t>(1 - link.rank().index)];
  }

  Write write(size_t slot, uint32_t queue = 0) const {
    Write write = {};
    write.source = out_.data() + slot * stride_ + 8;
    write.localMemory = local;
    write.remoteMemory = write.flagMemory = remote;
    write.remoteOffset = slot * stride_ + 8;
    write.bytes = payload_;
    write.flagOffset = slot * stride_;
    write.flagValue = slot + 1;
    write.immediate = static_cast<uint32_t>(slot);
    write.queue = queue;
    write.cookie = slot;
    return write;
  }
  bool flagged(size_t slot) { return loadFlag(in_.data() + slot * stride_) == slot + 1; }
  bool payloadIsThere(size_t slot) const {
    return findOther(in_.data() + slot * stride_ + 8, payload_, static_cast<std::byte>(slot % 251 + 1)) < 0;
  }
  bool untouched(size_t slot) const { return findOther(in_.data() + slot * stride_, stride_, std::byte{0}) < 0; }

  void* local = nullptr;
  void* remote = nullptr;

 private:
  Link& link_;
  size_t stride_, payload_;
  SharedMemory in_, out_;
};

}  // namespace test
